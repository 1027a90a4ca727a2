//! Does this backend keep the contract, on every arrangement of servers?

use std::time::Duration;

use crate::support::{fresh_prefix, raw, rights};
use syncguard_conformance::{Break, Budget, Harness, Line, Poison, Unsupported, suite};
use syncguard_core::{Key, LockId};
use syncguard_redis::{RedisBackend, RedisBuilder};
use syncguard_testkit::redis::Reply;
use syncguard_testkit::{Fault, FaultProxy, redis_ca, redis_cluster_url, redis_sentinel_url, redis_tls_url, redis_url};

/// A prefix of its own on a shared server.
struct RedisHarness {
    url: String,
    prefix: String,
    /// The URL of the other namespace, where its user is another one.
    elsewhere: Option<String>,
    /// Where to look past the backend.
    port: u16,
    cluster: bool,
    budget: Budget,
}

impl RedisHarness {
    fn on(url: String, port: u16) -> Self {
        let cluster = url.contains("+cluster");
        Self { url, prefix: fresh_prefix(), elsewhere: None, port, cluster, budget: Budget::default() }
    }

    /// As a user who may do what the documentation says and nothing else, one for each namespace.
    fn least_rights() -> Self {
        let harness = Self::single();
        let (prefix, port) = (&harness.prefix, harness.port);
        let user = |prefix: &str| rights::user(port, &rights::documented("worker"), prefix);
        Self {
            url: user(prefix),
            elsewhere: Some(user(&format!("{prefix}-elsewhere"))),
            // What many clients do at once is the same for every user.
            budget: Budget { serial_cycles: 50, contended_cycles: 100, boundary_trials: 20, racers: 16 },
            ..harness
        }
    }

    fn single() -> Self {
        let url = redis_url();
        let port = first_port(&url);
        Self::on(url, port)
    }

    fn tls() -> Self {
        let port = first_port(&redis_url());
        Self::on(format!("{}?tls_ca={}", redis_tls_url(), redis_ca().display()), port)
    }

    fn sentinel() -> Self {
        let url = redis_sentinel_url();
        let asked = raw(first_port(&url), &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"]);
        let port = asked.items()[1].to_string().parse().unwrap();
        Self::on(url, port)
    }

    fn cluster() -> Self {
        let url = redis_cluster_url();
        let port = first_port(&url);
        Self::on(url, port)
    }

    fn options(&self) -> RedisBuilder {
        RedisBuilder::from_url(&self.url).unwrap().prefix(self.prefix.as_str())
    }

    fn lock_name(&self, key: &Key) -> String {
        format!("{}:{}", self.full_prefix(key), key.as_str())
    }

    fn counter_name(&self, key: &Key) -> String {
        format!("{}:fence:{}", self.full_prefix(key), self.lock_name(key))
    }

    fn full_prefix(&self, key: &Key) -> String {
        if self.cluster { format!("{{{}:{}}}", self.prefix, &key.hash().to_string()[..1]) } else { self.prefix.clone() }
    }
}

fn first_port(url: &str) -> u16 {
    let host = url.split("127.0.0.1:").nth(1).or_else(|| url.split("localhost:").nth(1)).unwrap();
    host.split(|character: char| !character.is_ascii_digit()).next().unwrap().parse().unwrap()
}

impl Harness for RedisHarness {
    type Backend = RedisBackend;

    async fn backend(&self) -> RedisBackend {
        self.options().connect().await.unwrap()
    }

    async fn elsewhere(&self) -> RedisBackend {
        let url = self.elsewhere.as_ref().unwrap_or(&self.url);
        RedisBuilder::from_url(url).unwrap().prefix(format!("{}-elsewhere", self.prefix)).connect().await.unwrap()
    }

    async fn cleaning(&self) -> Result<RedisBackend, Unsupported> {
        Ok(self.options().cleanup_in_is_locked(true).connect().await.unwrap())
    }

    async fn set_counter(&self, key: &Key, value: u64) -> Result<(), Unsupported> {
        raw(self.port, &["SET", &self.counter_name(key), &value.to_string()]);
        Ok(())
    }

    async fn counter(&self, key: &Key) -> Result<Option<u64>, Unsupported> {
        match raw(self.port, &["GET", &self.counter_name(key)]) {
            Reply::Nil => Ok(None),
            reply => Ok(Some(reply.to_string().parse().unwrap())),
        }
    }

    async fn poison(&self, key: &Key, poison: Poison) -> Result<(), Unsupported> {
        let value = match poison {
            Poison::NotALock => "not json".to_owned(),
            Poison::Empty => "{}".to_owned(),
            Poison::NoExpiry => r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","key":"k","fence":"000000000000001"}"#.to_owned(),
            Poison::ExpiryIsText => {
                r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":"soon","acquiredAtMs":1}"#.to_owned()
            }
            Poison::NoOwner => {
                r#"{"expiresAtMs":4102444800000,"acquiredAtMs":1,"key":"k","fence":"000000000000001"}"#.to_owned()
            }
            other => return Err(Unsupported::because(format!("redis has no form for {other:?}"))),
        };
        raw(self.port, &["SET", &self.lock_name(key), &value]);
        Ok(())
    }

    async fn damage_counter(&self, key: &Key) -> Result<(), Unsupported> {
        raw(self.port, &["SET", &self.counter_name(key), "many"]);
        Ok(())
    }

    async fn entries(&self) -> Result<usize, Unsupported> {
        if self.cluster {
            return Err(Unsupported::because("they lie on several servers; a single one counts them"));
        }
        let all = raw(self.port, &["KEYS", &format!("{}:*", self.prefix)]);
        let counter = format!("{}:fence:", self.prefix);
        Ok(all.items().iter().filter(|name| !name.to_string().starts_with(&counter)).count())
    }

    async fn on_a_line(&self) -> Result<(RedisBackend, Line), Unsupported> {
        if !self.url.starts_with("redis://") {
            return Err(Unsupported::because("one line leads to one server, without TLS"));
        }
        let proxy = FaultProxy::start(self.port);
        proxy.reset_holes();
        let options = RedisBuilder::from_url(&proxy.url(&self.url)).unwrap().prefix(self.prefix.as_str());
        let backend = options.timeout(Duration::from_secs(1)).connect().await.unwrap();
        let line = Line::new(move |now| {
            proxy.set(match now {
                Break::Mended => Fault::Pass,
                Break::RepliesLost => Fault::DropReplies,
                Break::Silent => Fault::BlackHole,
            });
        });
        Ok((backend, line))
    }

    async fn hold_up(&self, _: &Key, _: Duration) -> Result<(), Unsupported> {
        Err(Unsupported::because("a script waits for nobody, and reads the clock as it starts"))
    }

    async fn backend_with_clock(&self, _: i64) -> Result<RedisBackend, Unsupported> {
        Err(Unsupported::because("no client's clock is asked; the scripts read the server's"))
    }

    /// Redis removes a lock by itself when its time is over.
    fn keeps_dead_locks(&self) -> bool {
        false
    }

    fn budget(&self) -> Budget {
        self.budget
    }

    fn refuses(&self, key: &str) -> bool {
        key.starts_with(&format!("fence:{}:", self.prefix))
            || key.strip_prefix("id:").is_some_and(|id| LockId::parse(id).is_ok())
    }
}

suite!(single, RedisHarness::single());
suite!(least_rights, RedisHarness::least_rights());
suite!(tls, RedisHarness::tls());
suite!(sentinel, RedisHarness::sentinel());
suite!(cluster, RedisHarness::cluster());
