use syncguard_core::{Guard, Unfenced};

fn use_it(guard: &Guard<Unfenced>) {
    guard.fence();
}

fn main() {}
