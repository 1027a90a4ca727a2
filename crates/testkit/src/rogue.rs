//! Who takes a server's place, and what does it get to hear?

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// A listener on the loopback that answers as it likes and keeps every byte that it was sent.
///
/// It is also reached as [`ELSEWHERE`], an address that counts as another machine's.
#[derive(Debug)]
pub struct Rogue {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<u8>>>,
}

/// No loopback address, and yet the system leads it to this machine.
pub const ELSEWHERE: &str = "0.0.0.0";

impl Rogue {
    /// Starts one that answers every piece of what it hears; an empty answer ends the connection.
    ///
    /// # Panics
    /// When it cannot listen.
    pub fn start(answer: impl Fn(&[u8]) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let address = listener.local_addr().expect("a port");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (answer, ear) = (Arc::new(answer), heard.clone());
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let (answer, ear) = (answer.clone(), ear.clone());
                std::thread::spawn(move || converse(stream, &*answer, &ear));
            }
        });
        Self { address, heard }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// All that it was sent so far, as text.
    pub fn heard(&self) -> String {
        String::from_utf8_lossy(&self.heard.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Begins anew.
    pub fn forget(&self) {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

fn converse(mut stream: TcpStream, answer: &dyn Fn(&[u8]) -> Vec<u8>, ear: &Mutex<Vec<u8>>) {
    let mut piece = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut piece) {
        ear.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&piece[..length]);
        let said = answer(&piece[..length]);
        if said.is_empty() || stream.write_all(&said).is_err() {
            return;
        }
    }
}
