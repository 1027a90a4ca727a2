//! What lies in Redis under one prefix?

use syncguard_core::LockId;
use syncguard_redis::{RedisBackend, RedisBuilder};
use syncguard_testkit::redis::Reply;
use syncguard_testkit::redis_url;

use super::{fresh_prefix, raw};

/// One prefix on a Redis that tests share, and a look past the backend.
pub(crate) struct Place {
    pub(crate) backend: RedisBackend,
    pub(crate) prefix: String,
    pub(crate) port: u16,
}

impl Place {
    pub(crate) async fn new() -> Self {
        Self::with(|options| options).await
    }

    pub(crate) async fn with(change: impl FnOnce(RedisBuilder) -> RedisBuilder) -> Self {
        let (url, prefix) = (redis_url(), fresh_prefix());
        let port = url.trim_end_matches('/').rsplit_once(':').unwrap().1.parse().unwrap();
        let options = RedisBuilder::from_url(&url).unwrap().prefix(prefix.as_str());
        Self { backend: change(options).connect().await.unwrap(), prefix, port }
    }

    pub(crate) fn run(&self, words: &[&str]) -> Reply {
        raw(self.port, words)
    }

    pub(crate) fn name(&self, key: &str) -> String {
        format!("{}:{key}", self.prefix)
    }

    pub(crate) fn counter(&self, key: &str) -> String {
        format!("{0}:fence:{0}:{key}", self.prefix)
    }

    pub(crate) fn index(&self, id: &LockId) -> String {
        format!("{}:id:{}", self.prefix, id.as_str())
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.run(&["GET", name]).to_string()
    }
}

pub(crate) fn number(reply: &Reply) -> i64 {
    reply.to_string().parse().unwrap()
}

pub(crate) fn server_time(place: &Place) -> i64 {
    let time = place.run(&["TIME"]).items();
    number(&time[0]) * 1000 + number(&time[1]) / 1000
}
