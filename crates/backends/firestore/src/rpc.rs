//! How is Firestore spoken to?
//!
//! Four calls, each bounded by the operation's deadline: read documents by name, find locks by a field, write on
//! conditions, listen. No server-side transaction is ever opened, so a client that dies leaves nothing locked behind.

use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use googleapis_tonic_google_firestore_v1::google::firestore::v1 as proto;
use proto::batch_get_documents_response::Result as Got;
use proto::firestore_client::FirestoreClient;
use proto::structured_query as query;
use syncguard_core::{Clock, LockError, Result};
use tokio::time::{Instant, timeout_at};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Streaming};

use crate::auth::Auth;
use crate::builder::FirestoreBuilder;
use crate::connect::endpoint;
use crate::error::{Kind, RpcError};
use crate::skew::{ClockOffset, GRANULARITY_MS, Sent, Skew};

/// A connection to one database.
#[derive(Clone, Debug)]
pub(crate) struct Rpc {
    client: FirestoreClient<Channel>,
    auth: Auth,
    database: String,
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
        let auth = match options.emulator {
            Some(_) => Auth::Emulator,
            None => Auth::google(options.credentials.as_deref())?,
        };
        let client = FirestoreClient::new(endpoint(options)?.connect_lazy());
        let database = format!("projects/{}/databases/{}", options.project, options.database);
        let header = |text: String| {
            MetadataValue::try_from(text).map_err(|_| LockError::invalid("the project or database is not a plain name"))
        };
        let resource = header(database.clone())?;
        let encoded: String = url::form_urlencoded::byte_serialize(database.as_bytes()).collect();
        let params = header(format!("database={encoded}"))?;
        Ok(Self { client, auth, database, resource, params, clock: options.clock.clone(), skew })
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
        deadline: Instant,
    ) -> Result<Answer<N>, RpcError> {
        bounded(deadline, async {
            let message = proto::BatchGetDocumentsRequest {
                database: self.database.clone(),
                documents: names.to_vec(),
                ..Default::default()
            };
            let request = self.request(message, deadline).await?;
            let sent = Sent::now(&*self.clock);
            let mut answers = self.client.clone().batch_get_documents(request).await?.into_inner();
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
            // A stream that ends early must not look like an absent lock.
            if !answered.into_iter().all(|answered| answered) {
                return Err(RpcError::new(Kind::BadReply));
            }
            let offset = read_time.as_ref().map(|time| self.skew.observe(sent, time, &*self.clock));
            Ok(Answer { documents, read_time, offset })
        })
        .await
    }

    /// Finds the documents of a collection whose field compares so. Without a limit unless one is given.
    pub(crate) async fn find(
        &self,
        collection: &str,
        (field, op, value): (&str, query::field_filter::Operator, proto::Value),
        limit: Option<i32>,
        deadline: Instant,
    ) -> Result<Found, RpcError> {
        let filter = query::FieldFilter {
            field: Some(query::FieldReference { field_path: field.to_owned() }),
            op: op.into(),
            value: Some(value),
        };
        let structured = proto::StructuredQuery {
            from: vec![query::CollectionSelector { collection_id: collection.to_owned(), all_descendants: false }],
            r#where: Some(query::Filter { filter_type: Some(query::filter::FilterType::FieldFilter(filter)) }),
            limit,
            ..Default::default()
        };
        bounded(deadline, async {
            let message = proto::RunQueryRequest {
                parent: format!("{}/documents", self.database),
                query_type: Some(proto::run_query_request::QueryType::StructuredQuery(structured)),
                ..Default::default()
            };
            let request = self.request(message, deadline).await?;
            let sent = Sent::now(&*self.clock);
            let mut answers = self.client.clone().run_query(request).await?.into_inner();
            let mut found = Found { documents: Vec::new(), read_time: None };
            while let Some(answer) = answers.message().await? {
                found.documents.extend(answer.document);
                found.read_time = answer.read_time.or(found.read_time);
            }
            // Even an empty answer tells its time: one that does not is a stream that ended early, not an absent lock.
            let Some(time) = &found.read_time else { return Err(RpcError::new(Kind::BadReply)) };
            self.skew.observe(sent, time, &*self.clock);
            Ok(found)
        })
        .await
    }

    /// Applies all writes or none.
    pub(crate) async fn commit(&self, writes: Vec<proto::Write>, deadline: Instant) -> Result<(), RpcError> {
        bounded(deadline, async {
            let message = proto::CommitRequest { database: self.database.clone(), writes, transaction: Vec::new() };
            let request = self.request(message, deadline).await?;
            let sent = Sent::now(&*self.clock);
            let answer = self.client.clone().commit(request).await?.into_inner();
            if let Some(time) = &answer.commit_time {
                self.skew.observe(sent, time, &*self.clock);
            }
            Ok(())
        })
        .await
    }

    /// Applies each write on its own and says how many took effect.
    pub(crate) async fn write_each(&self, writes: Vec<proto::Write>, deadline: Instant) -> Result<u64, RpcError> {
        bounded(deadline, async {
            let message = proto::BatchWriteRequest { database: self.database.clone(), writes, ..Default::default() };
            let request = self.request(message, deadline).await?;
            let answer = self.client.clone().batch_write(request).await?.into_inner();
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
            let request = self.request(targets, deadline).await?;
            Ok(self.client.clone().listen(request).await?.into_inner())
        })
        .await
    }

    async fn request<T>(&self, message: T, deadline: Instant) -> Result<Request<T>, RpcError> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("google-cloud-resource-prefix", self.resource.clone());
        request.metadata_mut().insert("x-goog-request-params", self.params.clone());
        // Bounded on its own: a token that does not come is another trouble than a server that does not answer.
        let signed = timeout_at(deadline, self.auth.sign(&mut request)).await;
        signed.unwrap_or_else(|_| Err(RpcError::new(Kind::NoToken(true))))?;
        Ok(request)
    }
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
