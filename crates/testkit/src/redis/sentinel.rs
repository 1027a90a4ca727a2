//! How does a test lose a Redis master and get another one?
//!
//! One master, its replicas and three sentinels that agree by two. A dead master is noticed after one second, unless the
//! test wants more patience.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::cluster::NOTICES_SILENCE;
use super::resp::Reply;
use super::server::{RedisOptions, RedisServer, info_field};
use crate::process::wait_for;
use crate::proxy::FaultProxy;

/// A failover takes two to five seconds; the rest is for a loaded machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// After how long a silent master counts as dead.
const DOWN_AFTER: Duration = Duration::from_secs(1);

/// A master, its replicas and the sentinels that watch them.
#[derive(Debug)]
pub struct RedisSentinel {
    sentinels: Vec<RedisServer>,
    servers: Vec<RedisServer>,
    /// One per data server where asked for: the address under which sentinels, replicas and clients know it.
    proxies: Vec<FaultProxy>,
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
        Self::launch(replicas, false, DOWN_AFTER)
    }

    /// As [`try_start`](Self::try_start), with a proxy before every data server, through which everybody goes, and
    /// sentinels that call a server dead after `down_after`.
    ///
    /// # Errors
    ///
    /// When they cannot be started or do not find each other.
    pub fn try_start_behind_proxies(replicas: usize, down_after: Duration) -> Result<Self> {
        Self::launch(replicas, true, down_after)
    }

    fn launch(replicas: usize, behind_proxies: bool, down_after: Duration) -> Result<Self> {
        ensure!(replicas >= 1, "without a replica there is nothing to fail over to");
        let mut this = Self { sentinels: Vec::new(), servers: Vec::new(), proxies: Vec::new() };
        this.add_server(None, behind_proxies)?;
        let port = this.public_port(0);
        for _ in 0..replicas {
            this.add_server(Some(port), behind_proxies)?;
        }
        this.wait_in_step()?;
        for _ in 0..3 {
            this.sentinels.push(RedisServer::try_start_sentinel(this.sentinel_options(port, down_after))?);
        }
        this.wait_acquainted()?;
        Ok(this)
    }

    /// Has every data server refuse writes that no replica hears of, as one that was left behind by a promotion: two
    /// masters at once give the same fence in the same millisecond.
    ///
    /// # Errors
    ///
    /// When one does not answer.
    pub fn refuse_writes_without_a_replica(&self) -> Result<()> {
        for server in &self.servers {
            server.try_command(&["CONFIG", "SET", "min-replicas-to-write", "1"])?;
            server.try_command(&["CONFIG", "SET", "min-replicas-max-lag", "3"])?;
        }
        Ok(())
    }

    fn add_server(&mut self, master: Option<u16>, behind_proxies: bool) -> Result<()> {
        // The default waits five seconds for more replicas to come.
        let mut options = RedisOptions::new().config("repl-diskless-sync-delay 0");
        for line in NOTICES_SILENCE {
            options = options.config(line);
        }
        if let Some(port) = master {
            options = options.config(format!("replicaof 127.0.0.1 {port}"));
        }
        if behind_proxies {
            // The server has its port only once it runs.
            let proxy = FaultProxy::start(0);
            options = options
                .config("replica-announce-ip 127.0.0.1")
                .config(format!("replica-announce-port {}", proxy.port()));
            self.proxies.push(proxy);
        }
        let server = RedisServer::try_start(options)?;
        if let Some(proxy) = self.proxies.last() {
            proxy.set_target(server.port());
        }
        self.servers.push(server);
        Ok(())
    }

    /// The proxies before the data servers; empty unless asked for.
    pub fn proxies(&self) -> &[FaultProxy] {
        &self.proxies
    }

    /// The port under which a data server is known.
    pub fn public_port(&self, index: usize) -> u16 {
        self.proxies.get(index).map_or_else(|| self.servers[index].port(), FaultProxy::port)
    }

    /// Makes a data server follow another one, as an operator does with a master that comes back.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub fn demote(&self, index: usize, master_port: u16) -> Result<()> {
        self.servers[index].try_command(&["REPLICAOF", "127.0.0.1", &master_port.to_string()]).map(drop)
    }

    fn sentinel_options(&self, master_port: u16, down_after: Duration) -> RedisOptions {
        let name = self.master_name();
        RedisOptions::new()
            .config(format!("sentinel monitor {name} 127.0.0.1 {master_port} 2"))
            .config(format!("sentinel down-after-milliseconds {name} {}", down_after.as_millis()))
            .config(format!("sentinel failover-timeout {name} 5000"))
            .config(format!("sentinel parallel-syncs {name} 1"))
    }

    /// Waits until every server but the present master is in step with it.
    ///
    /// # Errors
    ///
    /// When that does not happen.
    pub fn wait_followed(&self) -> Result<()> {
        let master = self.master_index()?;
        for (index, replica) in self.servers.iter().enumerate().filter(|(index, _)| *index != master) {
            wait_for("a replica to follow the master", PATIENCE, || {
                let info = replica.try_command(&["INFO", "replication"])?.to_string();
                let follows = info_field(&info, "role")? == "slave"
                    && info_field(&info, "master_port")? == self.public_port(master).to_string()
                    && info_field(&info, "master_link_status")? == "up";
                if !follows {
                    self.demote(index, self.public_port(master))?;
                }
                Ok(follows.then_some(()))
            })?;
        }
        Ok(())
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
        let index = self.master_index().unwrap_or_else(|error| panic!("{error:#}"));
        &self.servers[index]
    }

    /// The position of the present master among the data servers, as the sentinels say.
    ///
    /// # Errors
    ///
    /// When they do not agree on one of our servers.
    pub fn master_index(&self) -> Result<usize> {
        let port = self.master_port()?;
        (0..self.servers.len()).find(|&index| self.public_port(index) == port).context("the master is not one of ours")
    }

    /// Kills the present master with SIGKILL and returns its port; `servers_mut` restarts it.
    ///
    /// # Panics
    ///
    /// When the sentinels do not agree on one of our servers.
    pub fn kill_master(&mut self) -> u16 {
        let index = self.master_index().unwrap_or_else(|error| panic!("{error:#}"));
        self.servers[index].kill_hard();
        self.public_port(index)
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
        self.try_wait_for_new_master(old_port).unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// As [`wait_for_new_master`](Self::wait_for_new_master).
    ///
    /// # Errors
    ///
    /// When no failover happens within a minute.
    pub fn try_wait_for_new_master(&self, old_port: u16) -> Result<u16> {
        wait_for("a new master", PATIENCE, || {
            let port = self.master_port()?;
            if port == old_port {
                return Ok(None);
            }
            let info = self.servers[self.master_index()?].try_command(&["INFO", "replication"])?.to_string();
            Ok((info_field(&info, "role")? == "master").then_some(port))
        })
    }
}

/// Sentinel answers with a flat list of names and values.
fn field(fields: &[Reply], name: &str) -> Option<String> {
    fields.chunks_exact(2).find(|pair| pair[0].to_string() == name).map(|pair| pair[1].to_string())
}
