//! What do all backends of one file in this process share?
//!
//! The writer thread, the reader thread, the waiters. A second `open` of the same file joins the first: two writers in
//! one process would only queue behind each other.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use rusqlite::Connection;
use syncguard_core::inspect::Pace;
use syncguard_core::{Clock, LockError, Result, WakeHint, WakeHub};

use crate::channel::call;
use crate::connect;
use crate::error::Fault;
use crate::file::{self, Files};
use crate::listener::{EVERY_KEY, Listener};
use crate::log::Log;
use crate::operations::{Answer, Cleaning, Operation};
use crate::queue::Queue;
use crate::writer::{Request, Writer};

type Look = Box<dyn FnOnce(&Result<Connection, Fault>) + Send>;

/// One open file.
#[derive(Debug)]
pub(crate) struct Pool {
    files: Files,
    queue_file: PathBuf,
    hub: WakeHub,
    listener: Arc<Listener>,
    durable: Arc<AtomicBool>,
    writer: Sender<Request>,
    // Started by the first look: a command that only runs under a lock never needs it.
    reader: OnceLock<Sender<Look>>,
    /// Whether a look is having a dead lock removed now.
    is_cleaning: Arc<AtomicBool>,
    /// Shared by all listings, so that several together are no faster than one.
    pub(crate) pace: Pace,
}

/// Opens the file, with the writer that the caller must run, or joins who has it open in this process.
pub(crate) fn open(path: &Path, durable: bool, mode: Option<u32>) -> Result<(Arc<Pool>, Option<Writer>), Fault> {
    static OPEN: Mutex<Option<HashMap<PathBuf, Weak<Pool>>>> = Mutex::new(None);

    let path = file::resolve(path)?;
    // A panic inside leaves a map that is still right: the only change to it is one insertion.
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let open = open.get_or_insert_default();
    open.retain(|_, pool| pool.strong_count() > 0);
    if let Some(pool) = open.get(&path).and_then(Weak::upgrade)
        && pool.files.verify().is_ok()
    {
        file::check_mode(&path, mode)?;
        pool.durable.fetch_or(durable, Ordering::Relaxed);
        return Ok((pool, None));
    }
    let (pool, writer) = Pool::start(&path, durable, mode)?;
    let pool = Arc::new(pool);
    open.insert(path, Arc::downgrade(&pool));
    Ok((pool, Some(writer)))
}

impl Pool {
    fn start(path: &Path, durable: bool, mode: Option<u32>) -> Result<(Self, Writer), Fault> {
        let before = file::prepare(path, mode)?;
        // Looked at before anything is put beside it: a foreign file is left as it was.
        let unclaimed = connect::open(path)?;
        let mut queue = Queue::open(path)?;
        let db = unclaimed.claim(path, &mut queue)?;
        let log = Log::of(&db, path).map_err(|error| Fault::while_opening(path, &error))?;
        let files = Files::seen_at(path);
        // Again, because some of them were not there before.
        file::check_owners(path, mode)?;
        if file::Identity::at(path) != Some(before) {
            return Err(crate::error::replaced(path));
        }
        let (writer, inbox) = mpsc::channel();
        let pool = Self {
            files: files.clone(),
            queue_file: queue.path().to_path_buf(),
            hub: WakeHub::default(),
            listener: Arc::new(Listener::new()),
            durable: Arc::new(AtomicBool::new(durable)),
            writer,
            reader: OnceLock::new(),
            is_cleaning: Arc::default(),
            pace: Pace::default(),
        };
        let writer = Writer {
            db,
            log,
            queue,
            files,
            inbox,
            hub: pool.hub.clone(),
            listener: pool.listener.clone(),
            durable: pool.durable.clone(),
            syncing: None,
        };
        Ok((pool, writer))
    }

    pub(crate) fn path(&self) -> &Path {
        self.files.path()
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.durable.load(Ordering::Relaxed)
    }

    /// Has the writer do something, and waits until it is committed.
    pub(crate) async fn write(&self, operation: Operation, clock: &Arc<dyn Clock>) -> Result<Answer> {
        let (ticket, pending) = call(operation.outlives_its_caller());
        // A thread that is gone drops the ticket with the request, and the caller hears of it there.
        let _ = self.writer.send(Request { operation, clock: clock.clone(), ticket });
        pending.answer().await
    }

    /// Has the writer remove a key's dead lock, unless it is removing one already. A favour: nobody waits for it.
    pub(crate) fn clean_up_later(&self, name: String, clock: &Arc<dyn Clock>) {
        if let Some(cleaning) = Cleaning::begin(&self.is_cleaning) {
            let operation = Operation::PurgeKey { name, _cleaning: cleaning };
            let (ticket, _) = call(operation.outlives_its_caller());
            let _ = self.writer.send(Request { operation, clock: clock.clone(), ticket });
        }
    }

    /// Has the reader look at the committed state. Writers do not hold it up.
    pub(crate) async fn read<T, L>(&self, look: L) -> Result<T>
    where
        T: Send + 'static,
        L: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let (ticket, pending) = call(false);
        let files = self.files.clone();
        let job: Look = Box::new(move |db| {
            if ticket.take() {
                ticket.answer(match (db, files.verify()) {
                    (Ok(db), Ok(())) => look(db),
                    (Err(fault), _) => Err(fault.error()),
                    (_, Err(fault)) => Err(fault.error()),
                });
            }
        });
        let _ = self.reader()?.send(job);
        pending.answer().await
    }

    /// Registers a waiter of this process.
    pub(crate) fn subscribe(&self, name: &str) -> WakeHint {
        self.listener.subscribe(&self.queue_file, &self.hub, name)
    }

    /// Whether a waiter here would hear of a release in another process.
    pub(crate) fn hears_other_processes(&self) -> bool {
        let _waiter = self.subscribe(EVERY_KEY);
        self.listener.is_listening()
    }

    fn reader(&self) -> Result<&Sender<Look>> {
        if let Some(reader) = self.reader.get() {
            return Ok(reader);
        }
        let (reader, inbox) = mpsc::channel::<Look>();
        let path = self.files.path().to_path_buf();
        // Two first looks at once start two threads; the one whose sender is not kept ends at once.
        start_thread("syncguard-read", move || {
            let mut db = connect::connect(&path);
            for look in inbox {
                if db.is_err() {
                    db = connect::connect(&path);
                }
                look(&db);
            }
        })
        .map_err(|fault| fault.error())?;
        Ok(self.reader.get_or_init(|| reader))
    }

    /// What a failed look means.
    pub(crate) fn unread(path: &Path, error: &rusqlite::Error) -> LockError {
        Fault::while_in_use(path, error).error()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.listener.close();
    }
}

/// Starts a thread.
pub(crate) fn start_thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Fault> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    started.map(drop).map_err(|_| Fault::unavailable("the system gives no more threads"))
}
