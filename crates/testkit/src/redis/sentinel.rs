//! How does a test lose a Redis master and get another one?
//!
//! One master, its replicas and three sentinels that agree by two. A dead master is noticed after one second.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::resp::Reply;
use super::server::{RedisOptions, RedisServer, info_field};
use crate::process::wait_for;

/// A failover takes two to five seconds; the rest is for a loaded machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// A master, its replicas and the sentinels that watch them.
#[derive(Debug)]
pub struct RedisSentinel {
    sentinels: Vec<RedisServer>,
    servers: Vec<RedisServer>,
}

impl RedisSentinel {
    /// Starts one master, `replicas` replicas and three sentinels.
    ///
    /// # Panics
    ///
    /// When they cannot be started or do not find each other.
    pub fn start(replicas: usize) -> Self {
        Self::try_start(replicas).unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Starts one master, `replicas` replicas and three sentinels.
    ///
    /// # Errors
    ///
    /// When they cannot be started or do not find each other.
    pub fn try_start(replicas: usize) -> Result<Self> {
        ensure!(replicas >= 1, "without a replica there is nothing to fail over to");
        // The default waits five seconds for more replicas to come.
        let plain = || RedisOptions::new().config("repl-diskless-sync-delay 0");
        let master = RedisServer::try_start(plain())?;
        let port = master.port();
        let mut servers = vec![master];
        for _ in 0..replicas {
            servers.push(RedisServer::try_start(plain().config(format!("replicaof 127.0.0.1 {port}")))?);
        }
        let mut this = Self { sentinels: Vec::new(), servers };
        this.wait_in_step()?;
        for _ in 0..3 {
            this.sentinels.push(RedisServer::try_start_sentinel(this.sentinel_options(port))?);
        }
        this.wait_acquainted()?;
        Ok(this)
    }

    fn sentinel_options(&self, master_port: u16) -> RedisOptions {
        let name = self.master_name();
        RedisOptions::new()
            .config(format!("sentinel monitor {name} 127.0.0.1 {master_port} 2"))
            .config(format!("sentinel down-after-milliseconds {name} 1000"))
            .config(format!("sentinel failover-timeout {name} 5000"))
            .config(format!("sentinel parallel-syncs {name} 1"))
    }

    fn wait_in_step(&self) -> Result<()> {
        for replica in &self.servers[1..] {
            wait_for("a replica to be in step", PATIENCE, || {
                let info = replica.try_command(&["INFO", "replication"])?.to_string();
                Ok((info_field(&info, "master_link_status")? == "up").then_some(()))
            })?;
        }
        Ok(())
    }

    fn wait_acquainted(&self) -> Result<()> {
        let replicas = (self.servers.len() - 1).to_string();
        for sentinel in &self.sentinels {
            wait_for("the sentinels to know each other", PATIENCE, || {
                let fields = sentinel.try_command(&["SENTINEL", "MASTER", self.master_name()])?.items();
                let known = field(&fields, "num-other-sentinels") == Some("2".to_owned())
                    && field(&fields, "num-slaves").as_ref() == Some(&replicas);
                Ok(known.then_some(()))
            })?;
        }
        Ok(())
    }

    /// `redis+sentinel://host:port,host:port,host:port/mymaster`.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
        format!("redis+sentinel://{}/{}", hosts.join(","), self.master_name())
    }

    /// The plain URL of each sentinel.
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(RedisServer::url).collect()
    }

    /// The name under which the sentinels know the master.
    pub fn master_name(&self) -> &'static str {
        "mymaster"
    }

    /// The sentinels themselves.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// The data servers; the first was the master at the start.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The port of the master, as the majority of the sentinels says.
    ///
    /// # Errors
    ///
    /// When no two sentinels agree.
    pub fn master_port(&self) -> Result<u16> {
        let mut answers: Vec<u16> = self.sentinels.iter().filter_map(|one| self.ask_master(one).ok()).collect();
        answers.sort_unstable();
        answers.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]).context("no two sentinels agree")
    }

    fn ask_master(&self, sentinel: &RedisServer) -> Result<u16> {
        let address = sentinel.try_command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.master_name()])?.items();
        let port = address.get(1).context("the sentinel knows no master")?;
        Ok(port.to_string().parse()?)
    }

    /// The present master.
    ///
    /// # Panics
    ///
    /// When the sentinels do not agree on one of our servers.
    pub fn master(&self) -> &RedisServer {
        let port = self.master_port().unwrap_or_else(|error| panic!("{error:#}"));
        self.servers.iter().find(|server| server.port() == port).expect("the master is one of ours")
    }

    /// Kills the present master with SIGKILL and returns its port; `servers_mut` restarts it.
    ///
    /// # Panics
    ///
    /// When the sentinels do not agree on one of our servers.
    pub fn kill_master(&mut self) -> u16 {
        let port = self.master().port();
        for server in self.servers.iter_mut().filter(|server| server.port() == port) {
            server.kill_hard();
        }
        port
    }

    /// The data servers, to kill or restart them.
    pub fn servers_mut(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// Waits until the sentinels agree on a master that is not `old_port` and that says so itself; returns its port.
    ///
    /// # Panics
    ///
    /// When no failover happens within a minute.
    pub fn wait_for_new_master(&self, old_port: u16) -> u16 {
        let found = wait_for("a new master", PATIENCE, || {
            let port = self.master_port()?;
            if port == old_port {
                return Ok(None);
            }
            let server = self.servers.iter().find(|server| server.port() == port).context("not one of ours")?;
            let info = server.try_command(&["INFO", "replication"])?.to_string();
            Ok((info_field(&info, "role")? == "master").then_some(port))
        });
        found.unwrap_or_else(|error| panic!("{error:#}"))
    }
}

/// Sentinel answers with a flat list of names and values.
fn field(fields: &[Reply], name: &str) -> Option<String> {
    fields.chunks_exact(2).find(|pair| pair[0].to_string() == name).map(|pair| pair[1].to_string())
}
