//! How do many operations share one commit?
//!
//! One thread per process and file takes everything that waits, gets its turn in the queue of processes, does all of it
//! in one transaction and answers when it is committed: synced where every commit is to be durable, or when it promises
//! fences (see [`crate::reserve`]). What arrives meanwhile forms the next transaction, so
//! the batch grows with the load by itself and a lone caller never waits for company.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

use rusqlite::Connection;
use syncguard_core::{AcquireOutcome, Clock, LockError, Result, WakeHub};

use crate::channel::Ticket;
use crate::error::Fault;
use crate::file::Files;
use crate::listener::{EVERY_KEY, Listener};
use crate::log::Log;
use crate::operations::{Answer, Failure, Operation};
use crate::queue::Queue;
use crate::reserve::Giver;

// Bounds how long one turn lasts: about ten milliseconds of statements.
const BATCH: usize = 1_024;

/// An operation on its way to the disk.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) operation: Operation,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ticket: Ticket<Answer>,
}

/// The thread's belongings.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) db: Connection,
    pub(crate) log: Log,
    pub(crate) queue: Queue,
    pub(crate) files: Files,
    pub(crate) inbox: Receiver<Request>,
    pub(crate) hub: WakeHub,
    pub(crate) listener: Arc<Listener>,
    /// Set when one user of the file asked for durable commits; it never goes back.
    pub(crate) durable: Arc<AtomicBool>,
    /// What the connection's `synchronous` is now.
    pub(crate) syncing: Option<bool>,
}

/// What an operation got in a transaction that is not committed yet; `None` for a caller that left.
type Draft = Option<Result<Answer>>;

enum Unfinished {
    /// The operation at this place broke the transaction.
    Operation(Fault),
    /// The transaction itself did not begin or did not end.
    Transaction(Fault),
    /// It promises fences and was not to be synced. It was undone.
    Unsynced,
}

impl Writer {
    /// Serves until every sender is gone.
    pub(crate) fn run(mut self) {
        while let Ok(first) = self.inbox.recv() {
            let mut batch = vec![first];
            self.gather(&mut batch);
            self.serve(batch);
            self.log.shorten(&self.db);
        }
    }

    fn gather(&self, batch: &mut Vec<Request>) {
        let room = BATCH.saturating_sub(batch.len());
        batch.extend(self.inbox.try_iter().take(room));
    }

    fn serve(&mut self, mut batch: Vec<Request>) {
        let turn = match self.queue.try_enter() {
            Ok(Some(turn)) => Ok(turn),
            Ok(None) => {
                // Others are writing. Who asks for a lock that is held need not stand in the queue to hear so.
                batch = self.answer_contended(batch);
                if batch.is_empty() {
                    return;
                }
                let turn = self.queue.enter();
                self.gather(&mut batch);
                turn
            }
            Err(fault) => Err(fault),
        };
        let drafts = match &turn {
            Ok(_) => self.commit_together(&batch),
            Err(fault) => failed(fault, batch.len()),
        };
        // Stamps are written before the turn ends: the next writer must not write over one that it has not seen.
        self.wake_waiters(&drafts);
        drop(turn);
        for (request, draft) in batch.into_iter().zip(drafts) {
            if let Some(answer) = draft {
                request.ticket.answer(answer);
            }
        }
    }

    fn answer_contended(&self, batch: Vec<Request>) -> Vec<Request> {
        if self.files.verify().is_err() {
            return batch;
        }
        let mut rest = Vec::with_capacity(batch.len());
        for request in batch {
            match request.operation.answer_without_writing(&self.db, &*request.clock) {
                Some(answer) => request.ticket.answer(Ok(answer)),
                None => rest.push(request),
            }
        }
        rest
    }

    fn commit_together(&mut self, batch: &[Request]) -> Vec<Draft> {
        match self.transact(batch) {
            Ok(drafts) => drafts,
            Err(Unfinished::Transaction(fault)) => failed(&fault, batch.len()),
            Err(Unfinished::Unsynced) => failed(&Fault::unavailable("the commit was not synced"), batch.len()),
            Err(Unfinished::Operation(fault)) if batch.len() == 1 => failed(&fault, 1),
            // One of them meets a damaged page or a broken rule: the others must not suffer for it.
            Err(Unfinished::Operation(_)) => batch.chunks(1).flat_map(|one| self.commit_together(one)).collect(),
        }
    }

    /// Does all of it: without a sync if nobody asks for one, and again with one if it turns out to promise fences.
    fn transact(&mut self, batch: &[Request]) -> Result<Vec<Draft>, Unfinished> {
        let sync = self.durable.load(Ordering::Relaxed)
            && batch.iter().any(|request| request.operation.must_survive_a_power_cut());
        match self.attempt(batch, sync) {
            Err(Unfinished::Unsynced) => self.attempt(batch, true),
            done => done,
        }
    }

    fn attempt(&mut self, batch: &[Request], sync: bool) -> Result<Vec<Draft>, Unfinished> {
        self.begin(sync).map_err(Unfinished::Transaction)?;
        // After the waits, so that nothing is answered from a file that was taken away meanwhile.
        let drafts = self.files.verify().map_err(Unfinished::Transaction).and_then(|()| {
            let mut fences = Giver::new(self.durable.load(Ordering::Relaxed));
            let drafts = self.draft(batch, &mut fences)?;
            if fences.has_promised && !sync {
                return Err(Unfinished::Unsynced);
            }
            self.commit().map_err(Unfinished::Transaction)?;
            Ok(drafts)
        });
        if drafts.is_err() {
            self.roll_back();
        }
        drafts
    }

    fn roll_back(&self) {
        if !self.db.is_autocommit() {
            // If even this fails the connection refuses the next BEGIN, and that is an error again, not a wrong answer.
            let _ = self.db.execute_batch("ROLLBACK");
        }
    }

    fn begin(&mut self, sync: bool) -> Result<(), Fault> {
        let in_use = |error| Fault::while_in_use(self.files.path(), &error);
        if self.syncing != Some(sync) {
            let pragma = if sync { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
            self.db.execute_batch(pragma).map_err(in_use)?;
            self.syncing = Some(sync);
        }
        self.db.prepare_cached("BEGIN IMMEDIATE").and_then(|mut begin| begin.execute([])).map_err(in_use)?;
        Ok(())
    }

    fn draft(&self, batch: &[Request], fences: &mut Giver) -> Result<Vec<Draft>, Unfinished> {
        let mut drafts = Vec::with_capacity(batch.len());
        for request in batch {
            if !request.ticket.take() {
                drafts.push(None);
                continue;
            }
            match request.operation.run(&self.db, &*request.clock, fences) {
                Ok(answer) => drafts.push(Some(Ok(answer))),
                Err(Failure::Own(error)) => drafts.push(Some(Err(error))),
                Err(Failure::Storage(error)) => {
                    return Err(Unfinished::Operation(Fault::while_in_use(self.files.path(), &error)));
                }
            }
        }
        Ok(drafts)
    }

    fn commit(&self) -> Result<(), Fault> {
        // A failure does not say what the disk has.
        let committed = self.db.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([]));
        committed.map_err(|error| Fault::while_in_use(self.files.path(), &error).ambiguous())?;
        self.files.verify().map_err(Fault::ambiguous)
    }

    fn wake_waiters(&self, drafts: &[Draft]) {
        let mut changed = false;
        for draft in drafts {
            match draft {
                Some(Ok(Answer::Released(_, Some(freed)))) => {
                    self.hub.wake(freed);
                    self.listener.publish(&self.queue.file(), &self.hub, freed);
                    changed = true;
                }
                Some(Ok(Answer::Acquired(AcquireOutcome::Acquired(_)))) => changed = true,
                _ => {}
            }
        }
        // Other processes hear of releases only: a stamp for every lock that is taken would wake all who wait.
        if changed {
            self.hub.wake(EVERY_KEY);
        }
    }
}

fn failed(fault: &Fault, count: usize) -> Vec<Draft> {
    std::iter::repeat_with(|| Some(Err::<_, LockError>(fault.error()))).take(count).collect()
}
