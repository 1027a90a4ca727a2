use syncguard_core::{LockBackend, Locker, Unfenced};

fn use_it(backend: impl LockBackend<Fence = Unfenced>) -> Locker {
    Locker::new(backend)
}

fn main() {}
