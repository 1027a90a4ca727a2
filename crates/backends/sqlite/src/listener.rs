//! How do waiters in other processes learn that a lock was freed?
//!
//! By 512 stamps in the queue file. Who frees a lock writes a new stamp into the slot of its name; who waits
//! has an `inotify` watch on the file, reads the stamps when it changes and wakes the waiters of changed slots. There
//! is nothing to register and nothing that a killed process leaves behind. With nobody waiting, a release costs one
//! 8-byte write into the page cache.
//!
//! Rejected: a futex in shared memory (needs `unsafe`, and a killed waiter leaves its count behind), sockets (stale
//! names, 108-byte paths), a wake-up per file (cannot say which lock).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use syncguard_core::{Clock, SystemClock, WakeHint, WakeHub};

use watch::Watch;

const SLOTS: usize = 512;
const BYTES: usize = SLOTS * size_of::<u64>();

/// The topic of those who watch all locks. A key has at least one byte, so no waiter for a lock shares it.
pub(crate) const EVERY_KEY: &str = "";

/// The stamps that this process knows of, and its one watch.
#[derive(Debug)]
pub(crate) struct Listener {
    // Written by the watch and, for its own releases, by the writer: they woke their waiters already.
    known: Box<[AtomicU64]>,
    watch: Mutex<Option<Watch>>,
}

impl Listener {
    pub(crate) fn new() -> Self {
        Self { known: std::iter::repeat_with(AtomicU64::default).take(SLOTS).collect(), watch: Mutex::default() }
    }

    /// Tells other processes that this name was freed. To be called in the writer's turn, so that nobody else writes a
    /// stamp between the look at the slot and the write to it.
    pub(crate) fn publish(&self, file: &File, hub: &WakeHub, name: &str) {
        let slot = slot_of(name);
        let stamp = u64::try_from(SystemClock.boot().since_start().as_nanos()).unwrap_or(u64::MAX);
        let mut present = [0; size_of::<u64>()];
        let present = file.read_exact_at(&mut present, offset_of(slot)).map_or(0, |()| u64::from_le_bytes(present));
        // Another key of this slot was freed elsewhere, and our own watch has not read that stamp yet: it never will,
        // once ours is written over it.
        if self.known[slot].swap(stamp, Ordering::AcqRel) != present {
            wake_slots(hub, &[slot]);
        }
        // A hint that cannot be given makes waiters slower, never wrong.
        let _ = file.write_all_at(&stamp.to_le_bytes(), offset_of(slot));
    }

    /// Counts a waiter in. From the return on, releases of other processes are noticed.
    pub(crate) fn subscribe(self: &Arc<Self>, queue_file: &Path, hub: &WakeHub, name: &str) -> WakeHint {
        let mut watch = self.watch();
        let hint = hub.subscribe(name);
        if watch.is_none() {
            *watch = Watch::start(self, queue_file, hub);
        }
        hint
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.watch().is_some()
    }

    /// Stops listening.
    pub(crate) fn close(&self) {
        if let Some(watch) = self.watch().take() {
            watch.stop();
        }
    }

    /// Takes in the present stamps and says which slots changed.
    #[cfg_attr(not(any(target_os = "linux", target_os = "android")), allow(dead_code))]
    fn catch_up(&self, file: &File) -> Vec<usize> {
        let mut bytes = [0; BYTES];
        let mut read = 0;
        // A file that nobody wrote to yet is shorter.
        while let Ok(more @ 1..) = file.read_at(&mut bytes[read..], u64::try_from(read).unwrap_or(0)) {
            read += more;
        }
        let stamps = bytes.as_chunks::<{ size_of::<u64>() }>().0;
        let changed = |(slot, stamp): (usize, &[u8; 8])| {
            let stamp = u64::from_le_bytes(*stamp);
            (self.known[slot].swap(stamp, Ordering::AcqRel) != stamp).then_some(slot)
        };
        stamps.iter().enumerate().filter_map(changed).collect()
    }

    fn watch(&self) -> MutexGuard<'_, Option<Watch>> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the waiters of all names in these slots, and who watches all locks.
fn wake_slots(hub: &WakeHub, slots: &[usize]) {
    if slots.is_empty() {
        return;
    }
    for topic in hub.waited_for() {
        if *topic == *EVERY_KEY || slots.contains(&slot_of(&topic)) {
            hub.wake(&topic);
        }
    }
}

/// The slot of a name: FNV-1a, the same in every process and build.
fn slot_of(name: &str) -> usize {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in name.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    usize::try_from((hash ^ (hash >> 32)) & 0x1ff).unwrap_or(0)
}

fn offset_of(slot: usize) -> u64 {
    u64::try_from(slot * size_of::<u64>()).unwrap_or(0)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod watch {
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;

    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
    use rustix::io::Errno;

    use super::{Arc, File, Listener, Path, WakeHub, wake_slots};
    use crate::file::Identity;

    /// The thread that watches the stamps, as seen by others.
    #[derive(Debug)]
    pub(super) struct Watch {
        inotify: Arc<OwnedFd>,
        watch: i32,
    }

    impl Watch {
        /// None where the kernel has no more watches to give: waiters then rely on their schedule.
        pub(super) fn start(listener: &Arc<Listener>, path: &Path, hub: &WakeHub) -> Option<Self> {
            let file = File::open(path).ok()?;
            let inotify = Arc::new(inotify::init(CreateFlags::CLOEXEC).ok()?);
            let events = WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
            let watch = inotify::add_watch(&*inotify, path, events).ok()?;
            listener.catch_up(&file);
            let thread = Thread {
                listener: listener.clone(),
                hub: hub.clone(),
                inotify: inotify.clone(),
                path: path.into(),
                identity: Identity::of(&file.metadata().ok()?),
                file,
            };
            std::thread::Builder::new().name("syncguard-wake".into()).spawn(move || thread.run()).ok()?;
            Some(Self { inotify, watch })
        }

        /// Ends the thread: the kernel tells it that its watch is gone.
        pub(super) fn stop(self) {
            let _ = inotify::remove_watch(&*self.inotify, self.watch);
        }
    }

    struct Thread {
        listener: Arc<Listener>,
        hub: WakeHub,
        inotify: Arc<OwnedFd>,
        path: Box<Path>,
        identity: Identity,
        file: File,
    }

    impl Thread {
        fn run(self) {
            let mut buffer = [MaybeUninit::uninit(); 1024];
            let mut reader = inotify::Reader::new(&*self.inotify, &mut buffer);
            loop {
                let events = match next_events(&mut reader) {
                    Ok(events) => events,
                    Err(Errno::INTR) => continue,
                    Err(_) => break,
                };
                if events.intersects(ReadFlags::IGNORED | ReadFlags::UNMOUNT) || !self.is_current() {
                    break;
                }
                self.wake_waiters();
                if self.retire() {
                    return;
                }
            }
            // The watch is lost with waiters left: they look once more, and then rely on their schedule.
            self.forget_myself();
            self.hub.wake_every_topic();
        }

        fn wake_waiters(&self) {
            wake_slots(&self.hub, &self.listener.catch_up(&self.file));
        }

        /// Ends when nobody waits: a process that waited once must not wake up at every release for ever.
        fn retire(&self) -> bool {
            let mut watch = self.listener.watch();
            let idle = self.hub.waited_for().is_empty();
            if idle {
                *watch = None;
            }
            idle
        }

        fn forget_myself(&self) {
            let mut watch = self.listener.watch();
            if watch.as_ref().is_some_and(|watch| Arc::ptr_eq(&watch.inotify, &self.inotify)) {
                *watch = None;
            }
        }

        fn is_current(&self) -> bool {
            Identity::at(&self.path) == Some(self.identity)
        }
    }

    fn next_events(reader: &mut inotify::Reader<'_, &OwnedFd>) -> Result<ReadFlags, Errno> {
        let mut events = reader.next()?.events();
        while !reader.is_buffer_empty() {
            events |= reader.next()?.events();
        }
        Ok(events)
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod watch {
    use super::{Arc, Listener, Path, WakeHub};

    /// Waiters of other processes rely on their schedule here.
    #[derive(Debug)]
    pub(super) struct Watch;

    impl Watch {
        pub(super) fn start(_listener: &Arc<Listener>, _path: &Path, _hub: &WakeHub) -> Option<Self> {
            None
        }

        pub(super) fn stop(self) {}
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Two names that share a slot.
    fn neighbours() -> (String, String) {
        let first = "key:0".to_owned();
        let second = (1..100_000).map(|number| format!("key:{number}")).find(|name| slot_of(name) == slot_of(&first));
        (first, second.unwrap())
    }

    async fn is_woken(hint: &WakeHint) -> bool {
        tokio::time::timeout(Duration::from_millis(1), hint.woken()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_does_not_hide_the_release_of_a_neighbour_in_its_slot() {
        let file = tempfile::tempfile().unwrap();
        let (ours, theirs) = (Listener::new(), Listener::new());
        let (hub, elsewhere) = (WakeHub::default(), WakeHub::default());
        let (waited_for, freed_here) = neighbours();
        let hint = hub.subscribe(&waited_for);

        // Freed in another process; before our watch has read the stamp, we free another key of the same slot.
        theirs.publish(&file, &elsewhere, &waited_for);
        ours.publish(&file, &hub, &freed_here);

        assert!(is_woken(&hint).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_wakes_no_waiter_of_its_slot_that_missed_nothing() {
        let file = tempfile::tempfile().unwrap();
        let (listener, hub) = (Listener::new(), WakeHub::default());
        let (waited_for, freed_here) = neighbours();
        let hint = hub.subscribe(&waited_for);

        listener.publish(&file, &hub, &freed_here);
        listener.publish(&file, &hub, &freed_here);

        assert!(!is_woken(&hint).await);
        assert_eq!(listener.catch_up(&file), [0_usize; 0], "our own stamps are no news");
    }
}
