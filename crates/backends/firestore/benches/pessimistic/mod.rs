//! How would the lock look by server-side transactions?

use googleapis_tonic_google_firestore_v1::google::firestore::v1 as proto;
use proto::batch_get_documents_request::ConsistencySelector;
use proto::batch_get_documents_response::Result as Got;
use proto::firestore_client::FirestoreClient;
use proto::write::Operation;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::support::Project;
use crate::support::raw::lock_fields;

pub(crate) struct Pessimistic {
    client: FirestoreClient<Channel>,
    database: String,
}

impl Pessimistic {
    pub(crate) async fn connect(project: &Project) -> Self {
        let channel = Endpoint::from_shared(format!("http://{}", project.address)).unwrap().connect().await.unwrap();
        let database = format!("projects/{}/databases/(default)", project.id);
        Self { client: FirestoreClient::new(channel), database }
    }

    /// Begin, read both documents, write both.
    pub(crate) async fn acquire(&self, id: &str) -> Result<bool, Status> {
        let (lock, counter) = (self.name("locks", id), self.name("fence_counters", id));
        let transaction = self.begin().await?;
        let found = self.read(vec![lock.clone(), counter.clone()], transaction.clone()).await?;
        let held = found.iter().any(|document| document.name == lock);
        let write = |name: &String| {
            Operation::Update(proto::Document {
                name: name.clone(),
                fields: lock_fields(id, "AAAAAAAAAAAAAAAAAAAAAA", 1, i64::MAX),
                ..Default::default()
            })
        };
        let writes = if held { Vec::new() } else { vec![write(&lock), write(&counter)] };
        self.commit(writes, transaction).await?;
        Ok(!held)
    }

    pub(crate) async fn release(&self, id: &str) -> Result<(), Status> {
        let transaction = self.begin().await?;
        let lock = self.name("locks", id);
        self.read(vec![lock.clone()], transaction.clone()).await?;
        self.commit(vec![Operation::Delete(lock)], transaction).await
    }

    fn name(&self, collection: &str, id: &str) -> String {
        format!("{}/documents/{collection}/{id}", self.database)
    }

    async fn begin(&self) -> Result<Vec<u8>, Status> {
        let request = proto::BeginTransactionRequest { database: self.database.clone(), options: None };
        Ok(self.client.clone().begin_transaction(owner(request)).await?.into_inner().transaction)
    }

    async fn read(&self, documents: Vec<String>, transaction: Vec<u8>) -> Result<Vec<proto::Document>, Status> {
        let request = proto::BatchGetDocumentsRequest {
            database: self.database.clone(),
            documents,
            consistency_selector: Some(ConsistencySelector::Transaction(transaction)),
            ..Default::default()
        };
        let mut answers = self.client.clone().batch_get_documents(owner(request)).await?.into_inner();
        let mut found = Vec::new();
        while let Some(answer) = answers.message().await? {
            if let Some(Got::Found(document)) = answer.result {
                found.push(document);
            }
        }
        Ok(found)
    }

    async fn commit(&self, operations: Vec<Operation>, transaction: Vec<u8>) -> Result<(), Status> {
        let writes = operations.into_iter();
        let writes = writes.map(|operation| proto::Write { operation: Some(operation), ..Default::default() });
        let request = proto::CommitRequest { database: self.database.clone(), writes: writes.collect(), transaction };
        self.client.clone().commit(owner(request)).await.map(|_| ())
    }
}

fn owner<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", "Bearer owner".parse().unwrap());
    request
}
