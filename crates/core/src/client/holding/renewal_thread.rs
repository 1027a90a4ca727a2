//! Who renews a lock whose own runtime does not run?
//!
//! A runtime of one thread runs only while somebody waits in it. Whoever acquires in `block_on` and works outside of
//! it, or computes for long inside of it, leaves the renewal's task standing; on a runtime of several threads, work that
//! blocks all of them does. So one thread of the process stands by: every renewal promises when it will move next, and
//! one that breaks its promise is made here instead, on a runtime that is built when it is first needed.

use std::collections::{BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use tokio::runtime::{Builder, Handle};

use crate::time::{Clock, SystemClock};
use crate::{BootTime, LockHandle};

/// A lock with a renewal that somebody else can make.
pub(crate) trait Renewable: Send + Sync {
    /// When the promise of its own renewal is broken; `None` once there is nothing to renew any more. Tells nobody.
    fn overdue_at(&self) -> Option<BootTime>;

    /// Renews it once, trying again while the lease lasts.
    fn renew(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// The locks that are watched, and the thread that watches them.
#[derive(Default)]
struct Standby {
    list: Mutex<List>,
    /// Notified when a lock was added that is due before all others.
    earlier: Condvar,
}

#[derive(Default)]
struct List {
    /// The process that the thread runs in: a fork has none.
    process: Option<u32>,
    /// The number of the next ticket. Never used twice, so that a late return of an old ticket takes nobody else's.
    next: u64,
    /// Each lock with the moment under which it stands in `due`. One that is being renewed is in neither.
    locks: HashMap<u64, (BootTime, Weak<dyn Renewable>)>,
    due: BTreeSet<(BootTime, u64)>,
    /// The runtime for renewals of others, built for the first of them.
    runtime: Option<Handle>,
}

/// A place on the list, given back when dropped. Part of the lock that it is for.
#[derive(Debug)]
pub(crate) struct Ticket(u64);

impl Drop for Ticket {
    fn drop(&mut self) {
        standby().list().remove(self.0);
    }
}

/// Watches over the renewal of a lock: its runtime may stand still while its process goes on.
pub(crate) fn watch(lock: &LockHandle) {
    // A clock that a test moves by hand says nothing about the threads of this process.
    if !lock.0.shared.clock.is_system() {
        return;
    }
    let Some(at) = lock.0.overdue_at() else { return };
    let held: Arc<dyn Renewable> = lock.0.clone();
    if let Some(ticket) = standby().add(at, Arc::downgrade(&held)) {
        lock.0.renewal.keep(ticket);
    }
}

fn standby() -> &'static Arc<Standby> {
    static STANDBY: std::sync::LazyLock<Arc<Standby>> = std::sync::LazyLock::new(Arc::default);
    &STANDBY
}

impl Standby {
    // Every change of the list is complete when its method returns, so a panic elsewhere leaves it whole.
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` when no thread can be started: then the lock is renewed by its own runtime or not at all, as the error of
    /// its loss says.
    fn add(self: &Arc<Self>, at: BootTime, lock: Weak<dyn Renewable>) -> Option<Ticket> {
        let mut list = self.list();
        let process = std::process::id();
        if list.process != Some(process) {
            *list = List { next: list.next, ..List::default() };
            let this = self.clone();
            thread::Builder::new().name("syncguard-standby".into()).spawn(move || this.run()).ok()?;
            list.process = Some(process);
        }
        let number = list.next;
        list.next += 1;
        if list.insert(number, at, lock) {
            self.earlier.notify_one();
        }
        Some(Ticket(number))
    }

    fn run(self: &Arc<Self>) {
        let mut list = self.list();
        loop {
            let now = SystemClock.boot();
            list = match list.due.first().map(|(at, _)| *at) {
                None => self.earlier.wait(list).unwrap_or_else(PoisonError::into_inner),
                Some(at) if at > now => {
                    self.earlier.wait_timeout(list, at.since(now)).unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    let due = list.take_due(now);
                    // A lock may end here, and its ticket goes back to the list.
                    drop(list);
                    for (number, lock) in due {
                        self.attend(number, lock, now);
                    }
                    self.list()
                }
            }
        }
    }

    /// Looks at one lock: it keeps its promise, or it is over, or it is renewed here.
    fn attend(self: &Arc<Self>, number: u64, lock: Weak<dyn Renewable>, now: BootTime) {
        let Some(held) = lock.upgrade() else { return };
        match held.overdue_at() {
            None => {}
            Some(at) if at > now => {
                self.list().insert(number, at, lock);
            }
            Some(_) => {
                let Some(runtime) = self.runtime() else { return };
                let this = self.clone();
                runtime.spawn(async move {
                    held.renew().await;
                    this.look_again(number, lock);
                });
            }
        }
    }

    fn look_again(&self, number: u64, lock: Weak<dyn Renewable>) {
        let Some(at) = lock.upgrade().and_then(|held| held.overdue_at()) else { return };
        if self.list().insert(number, at, lock) {
            self.earlier.notify_one();
        }
    }

    /// A runtime that runs whatever the program does.
    fn runtime(&self) -> Option<Handle> {
        let mut list = self.list();
        if list.runtime.is_none() {
            let runtime = Builder::new_current_thread().enable_all().build().ok()?;
            let handle = runtime.handle().clone();
            let forever = move || runtime.block_on(std::future::pending::<()>());
            thread::Builder::new().name("syncguard-renewal".into()).spawn(forever).ok()?;
            list.runtime = Some(handle);
        }
        list.runtime.clone()
    }
}

impl List {
    /// Whether it is due before all others.
    fn insert(&mut self, number: u64, at: BootTime, lock: Weak<dyn Renewable>) -> bool {
        self.locks.insert(number, (at, lock));
        self.due.insert((at, number));
        self.due.first() == Some(&(at, number))
    }

    fn remove(&mut self, number: u64) {
        if let Some((at, _)) = self.locks.remove(&number) {
            self.due.remove(&(at, number));
        }
    }

    fn take_due(&mut self, now: BootTime) -> Vec<(u64, Weak<dyn Renewable>)> {
        let mut taken = Vec::new();
        while let Some(&(at, number)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, number));
            taken.extend(self.locks.remove(&number).map(|(_, lock)| (number, lock)));
        }
        taken
    }
}
