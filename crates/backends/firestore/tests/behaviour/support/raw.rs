//! How do tests see and damage documents without the backend?

use std::collections::HashMap;

use googleapis_tonic_google_firestore_v1::google::firestore::v1 as proto;
use proto::firestore_client::FirestoreClient;
use proto::value::ValueType;
use tonic::Request;
use tonic::transport::{Channel, Endpoint};

use super::Project;

pub type Fields = HashMap<String, proto::Value>;

pub struct Raw {
    client: FirestoreClient<Channel>,
    database: String,
}

impl Raw {
    pub async fn connect(project: &Project) -> Self {
        let channel = Endpoint::from_shared(format!("http://{}", project.address)).unwrap().connect().await.unwrap();
        let database = format!("projects/{}/databases/(default)", project.id);
        Self { client: FirestoreClient::new(channel), database }
    }

    fn name(&self, collection: &str, id: &str) -> String {
        format!("{}/documents/{collection}/{id}", self.database)
    }

    /// Overwrites a document, whatever is there.
    pub async fn put(&self, collection: &str, id: &str, fields: Fields) {
        let document = proto::Document { name: self.name(collection, id), fields, ..Default::default() };
        let write = proto::Write { operation: Some(proto::write::Operation::Update(document)), ..Default::default() };
        let commit =
            proto::CommitRequest { database: self.database.clone(), writes: vec![write], ..Default::default() };
        self.client.clone().commit(owner(commit)).await.unwrap();
    }

    /// The fields of a document.
    pub async fn get(&self, collection: &str, id: &str) -> Option<Fields> {
        let request = proto::GetDocumentRequest { name: self.name(collection, id), ..Default::default() };
        match self.client.clone().get_document(owner(request)).await {
            Ok(document) => Some(document.into_inner().fields),
            Err(status) if status.code() == tonic::Code::NotFound => None,
            Err(status) => panic!("{status}"),
        }
    }
}

fn owner<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", "Bearer owner".parse().unwrap());
    request
}

pub fn text(value: &str) -> proto::Value {
    proto::Value { value_type: Some(ValueType::StringValue(value.to_owned())) }
}

pub fn number(value: i64) -> proto::Value {
    proto::Value { value_type: Some(ValueType::IntegerValue(value)) }
}

/// A whole lock document.
pub fn lock_fields(key: &str, lock_id: &str, fence: u64, expires_at: i64) -> Fields {
    HashMap::from([
        ("lockId".to_owned(), text(lock_id)),
        ("key".to_owned(), text(key)),
        ("fence".to_owned(), text(&format!("{fence:015}"))),
        ("acquiredAtMs".to_owned(), number(expires_at - 30_000)),
        ("expiresAtMs".to_owned(), number(expires_at)),
    ])
}

pub fn as_text(fields: &Fields, field: &str) -> String {
    match fields[field].value_type.as_ref().unwrap() {
        ValueType::StringValue(text) => text.clone(),
        other => panic!("{field} is {other:?}"),
    }
}

pub fn as_number(fields: &Fields, field: &str) -> i64 {
    match fields[field].value_type.as_ref().unwrap() {
        ValueType::IntegerValue(number) => *number,
        other => panic!("{field} is {other:?}"),
    }
}
