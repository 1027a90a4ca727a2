//! How is Firestore spoken to?
//!
//! A few calls, each bounded by the operation's deadline: read documents by name, find locks by a field, count them, write
//! on conditions, listen. No server-side transaction is ever opened, so a client that dies leaves nothing locked behind.

use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use googleapis_tonic_google_firestore_v1::google::firestore::v1 as proto;
use proto::batch_get_documents_response::Result as Got;
use proto::firestore_client::FirestoreClient;
use proto::structured_query as query;
use syncguard_core::{Clock, LockError, Result};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Request, Streaming};

use crate::auth::Auth;
use crate::builder::FirestoreBuilder;
use crate::error::{Kind, RpcError};
use crate::pool::{Connection, Patience, Pool};
use crate::skew::{ClockOffset, GRANULARITY_MS, Sent, Skew};

/// What the server calls the answer to a question for a number.
const COUNT: &str = "count";

/// The calls to one database.
#[derive(Clone, Debug)]
pub(crate) struct Rpc {
    pool: Pool,
    database: Arc<str>,
    /// Which database the request is for, where the front end looks: without it a named one is not found.
    resource: MetadataValue<Ascii>,
    params: MetadataValue<Ascii>,
    clock: Arc<dyn Clock>,
    skew: Arc<Skew>,
}

/// Documents found by a query, and the server's time.
pub(crate) struct Found {
    pub(crate) documents: Vec<proto::Document>,
    pub(crate) read_time: Option<prost_types::Timestamp>,
}

impl Rpc {
    pub(crate) fn new(options: &FirestoreBuilder, skew: Arc<Skew>) -> Result<Self> {
        let pool = Pool::new(options)?;
        let database: Arc<str> = format!("projects/{}/databases/{}", options.project, options.database).into();
        let header = |text: String| {
            MetadataValue::try_from(text).map_err(|_| LockError::invalid("the project or database is not a plain name"))
        };
        let resource = header(database.to_string())?;
        let encoded: String = url::form_urlencoded::byte_serialize(database.as_bytes()).collect();
        let params = header(format!("database={encoded}"))?;
        Ok(Self { pool, database, resource, params, clock: options.clock.clone(), skew })
    }

    /// The full name of a document.
    pub(crate) fn name(&self, collection: &str, id: &str) -> String {
        format!("{}/documents/{collection}/{id}", self.database)
    }

    pub(crate) fn database(&self) -> &str {
        &self.database
    }

    /// How long an answer takes at best, as far as it is known.
    pub(crate) fn round_trip(&self) -> Duration {
        let half = self.skew.best().map_or(0, |offset| offset.error_millis - GRANULARITY_MS);
        Duration::from_millis(u64::try_from(half).unwrap_or(0) * 2 + 1)
    }

    /// Reads documents by name; the answer has the order of the names.
    pub(crate) async fn read<const N: usize>(
        &self,
        names: [String; N],
        patience: Patience,
    ) -> Result<Answer<N>, RpcError> {
        self.ask(patience, |connection| self.read_on(connection, &names, patience)).await
    }

    async fn read_on<const N: usize>(
        &self,
        connection: Connection,
        names: &[String; N],
        patience: Patience,
    ) -> Result<Answer<N>, RpcError> {
        let message = proto::BatchGetDocumentsRequest {
            database: self.database.to_string(),
            documents: names.to_vec(),
            ..Default::default()
        };
        let request = self.request(&connection.auth, message, patience.deadline).await?;
        let unanswered = self.pool.watch(connection.number, patience);
        let sent = Sent::now(&*self.clock);
        let mut answers = FirestoreClient::new(connection.channel).batch_get_documents(request).await?.into_inner();
        let mut documents = [const { None }; N];
        let mut answered = [false; N];
        let mut read_time = None;
        while let Some(answer) = answers.message().await? {
            if let Some(time) = answer.read_time {
                read_time = Some(time);
            }
            let (name, document) = match answer.result {
                Some(Got::Found(document)) => (document.name.clone(), Some(document)),
                Some(Got::Missing(name)) => (name, None),
                None => continue,
            };
            if let Some(index) = names.iter().position(|asked| *asked == name) {
                documents[index] = document;
                answered[index] = true;
            }
        }
        unanswered.answered();
        // A stream that ends early must not look like an absent lock.
        if !answered.into_iter().all(|answered| answered) {
            return Err(RpcError::new(Kind::BadReply));
        }
        let offset = read_time.as_ref().map(|time| self.skew.observe(sent, time, &*self.clock));
        Ok(Answer { documents, read_time, offset })
    }

    /// Finds the documents of a collection whose field compares so. Without a limit unless one is given.
    pub(crate) async fn find(
        &self,
        collection: &str,
        (field, op, value): (&str, query::field_filter::Operator, proto::Value),
        limit: Option<i32>,
        patience: Patience,
    ) -> Result<Found, RpcError> {
        let filter = query::FieldFilter {
            field: Some(query::FieldReference { field_path: field.to_owned() }),
            op: op.into(),
            value: Some(value),
        };
        let structured = proto::StructuredQuery {
            from: vec![collection_of(collection)],
            r#where: Some(query::Filter { filter_type: Some(query::filter::FilterType::FieldFilter(filter)) }),
            limit,
            ..Default::default()
        };
        self.query(structured, patience).await
    }

    /// Runs a query.
    pub(crate) async fn query(&self, query: proto::StructuredQuery, patience: Patience) -> Result<Found, RpcError> {
        self.ask(patience, |connection| self.query_on(connection, query.clone(), patience)).await
    }

    async fn query_on(
        &self,
        connection: Connection,
        query: proto::StructuredQuery,
        patience: Patience,
    ) -> Result<Found, RpcError> {
        let message = proto::RunQueryRequest {
            parent: format!("{}/documents", self.database),
            query_type: Some(proto::run_query_request::QueryType::StructuredQuery(query)),
            ..Default::default()
        };
        let request = self.request(&connection.auth, message, patience.deadline).await?;
        let unanswered = self.pool.watch(connection.number, patience);
        let sent = Sent::now(&*self.clock);
        let mut answers = FirestoreClient::new(connection.channel).run_query(request).await?.into_inner();
        let mut found = Found { documents: Vec::new(), read_time: None };
        while let Some(answer) = answers.message().await? {
            found.documents.extend(answer.document);
            found.read_time = answer.read_time.or(found.read_time);
        }
        unanswered.answered();
        // Even an empty answer tells its time: one that does not is a stream that ended early, not an absent lock.
        let Some(time) = &found.read_time else { return Err(RpcError::new(Kind::BadReply)) };
        self.skew.observe(sent, time, &*self.clock);
        Ok(found)
    }

    /// How many documents a query would find. Billed by the thousand, not by the document.
    pub(crate) async fn count(&self, query: proto::StructuredQuery, patience: Patience) -> Result<u64, RpcError> {
        self.ask(patience, |connection| self.count_on(connection, query.clone(), patience)).await
    }

    async fn count_on(
        &self,
        connection: Connection,
        query: proto::StructuredQuery,
        patience: Patience,
    ) -> Result<u64, RpcError> {
        use proto::run_aggregation_query_request::QueryType;
        use proto::structured_aggregation_query::{self as aggregated, Aggregation, aggregation};
        let count = aggregation::Operator::Count(aggregation::Count { up_to: None });
        let message = proto::RunAggregationQueryRequest {
            parent: format!("{}/documents", self.database),
            query_type: Some(QueryType::StructuredAggregationQuery(proto::StructuredAggregationQuery {
                aggregations: vec![Aggregation { alias: COUNT.to_owned(), operator: Some(count) }],
                query_type: Some(aggregated::QueryType::StructuredQuery(query)),
            })),
            ..Default::default()
        };
        let request = self.request(&connection.auth, message, patience.deadline).await?;
        let unanswered = self.pool.watch(connection.number, patience);
        let mut answers = FirestoreClient::new(connection.channel).run_aggregation_query(request).await?.into_inner();
        let mut counted = None;
        while let Some(answer) = answers.message().await? {
            let value = answer.result.and_then(|mut result| result.aggregate_fields.remove(COUNT));
            if let Some(proto::value::ValueType::IntegerValue(count)) = value.and_then(|value| value.value_type) {
                counted = u64::try_from(count).ok();
            }
        }
        unanswered.answered();
        counted.ok_or_else(|| RpcError::new(Kind::BadReply))
    }

    /// Whether a collection has documents in collections below it, as far as its first page tells.
    pub(crate) async fn has_nested(&self, collection: &str, patience: Patience) -> Result<bool, RpcError> {
        let message = proto::ListDocumentsRequest {
            parent: format!("{}/documents", self.database),
            collection_id: collection.to_owned(),
            page_size: 300,
            show_missing: true,
            mask: Some(proto::DocumentMask { field_paths: Vec::new() }),
            ..Default::default()
        };
        bounded(patience.deadline, async {
            let connection = self.pool.connection().await?;
            let request = self.request(&connection.auth, message, patience.deadline).await?;
            let page = FirestoreClient::new(connection.channel).list_documents(request).await?.into_inner();
            // A document that was never written, and is listed for what is below it.
            Ok(page.documents.iter().any(|document| document.update_time.is_none()))
        })
        .await
    }

    /// Asks on the shared connection and, should that stay silent, on a new one as well. Only for what may be asked
    /// twice.
    async fn ask<T, C>(&self, patience: Patience, call: impl Fn(Connection) -> C) -> Result<T, RpcError>
    where
        C: Future<Output = Result<T, RpcError>>,
    {
        bounded(patience.deadline, async {
            let connection = self.pool.connection().await?;
            let number = connection.number;
            // Boxed: both together would make every operation a future of 20 KiB.
            let mut first = Box::pin(call(connection));
            tokio::select! {
                biased;
                answer = &mut first => return answer,
                () = sleep(patience.silence) => {}
            }
            self.pool.give_up(number);
            let mut second = Box::pin(call(self.pool.connection().await?));
            // The server may just be slow: the first one to bring an answer is right.
            tokio::select! {
                answer = &mut first => if answer.is_ok() { answer } else { second.await },
                answer = &mut second => if answer.is_ok() { answer } else { first.await },
            }
        })
        .await
    }

    /// Applies all writes or none.
    pub(crate) async fn commit(&self, writes: Vec<proto::Write>, patience: Patience) -> Result<(), RpcError> {
        bounded(patience.deadline, async {
            let message = proto::CommitRequest { database: self.database.to_string(), writes, transaction: Vec::new() };
            let connection = self.pool.connection().await?;
            let request = self.request(&connection.auth, message, patience.deadline).await?;
            let unanswered = self.pool.watch(connection.number, patience);
            let sent = Sent::now(&*self.clock);
            let answer = FirestoreClient::new(connection.channel).commit(request).await?.into_inner();
            unanswered.answered();
            if let Some(time) = &answer.commit_time {
                self.skew.observe(sent, time, &*self.clock);
            }
            Ok(())
        })
        .await
    }

    /// Applies each write on its own and says how many took effect.
    pub(crate) async fn write_each(&self, writes: Vec<proto::Write>, patience: Patience) -> Result<u64, RpcError> {
        bounded(patience.deadline, async {
            let message =
                proto::BatchWriteRequest { database: self.database.to_string(), writes, ..Default::default() };
            let connection = self.pool.connection().await?;
            let request = self.request(&connection.auth, message, patience.deadline).await?;
            let unanswered = self.pool.watch(connection.number, patience);
            let answer = FirestoreClient::new(connection.channel).batch_write(request).await?.into_inner();
            unanswered.answered();
            let applied = answer.status.iter().filter(|status| status.code == 0).count();
            Ok(u64::try_from(applied).unwrap_or(u64::MAX))
        })
        .await
    }

    /// Opens a stream of changes. Only the opening is bounded.
    pub(crate) async fn listen(
        &self,
        targets: impl Stream<Item = proto::ListenRequest> + Send + 'static,
        deadline: Instant,
    ) -> Result<Streaming<proto::ListenResponse>, RpcError> {
        bounded(deadline, async {
            let connection = self.pool.connection().await?;
            let request = self.request(&connection.auth, targets, deadline).await?;
            Ok(FirestoreClient::new(connection.channel).listen(request).await?.into_inner())
        })
        .await
    }

    async fn request<T>(&self, auth: &Auth, message: T, deadline: Instant) -> Result<Request<T>, RpcError> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("google-cloud-resource-prefix", self.resource.clone());
        request.metadata_mut().insert("x-goog-request-params", self.params.clone());
        // Bounded on its own: a token that does not come is another trouble than a server that does not answer.
        let signed = timeout_at(deadline, auth.sign(&mut request)).await;
        signed.unwrap_or_else(|_| Err(RpcError::new(Kind::NoToken(true))))?;
        Ok(request)
    }
}

/// The documents of a collection, and not those of collections below it.
pub(crate) fn collection_of(name: &str) -> query::CollectionSelector {
    query::CollectionSelector { collection_id: name.to_owned(), all_descendants: false }
}

/// Documents read by name, and the server's time.
pub(crate) struct Answer<const N: usize> {
    pub(crate) documents: [Option<proto::Document>; N],
    pub(crate) read_time: Option<prost_types::Timestamp>,
    /// What this very answer says about the clocks.
    pub(crate) offset: Option<ClockOffset>,
}

async fn bounded<T>(deadline: Instant, call: impl Future<Output = Result<T, RpcError>>) -> Result<T, RpcError> {
    timeout_at(deadline, call).await.unwrap_or_else(|_| Err(RpcError::new(Kind::TimedOut)))
}
