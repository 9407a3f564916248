//! A network link with latency: bytes arrive a fixed time after they were sent, both ways. It limits no throughput.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// The latency of several links, one way; it can change at any time.
#[derive(Debug, Clone, Default)]
pub struct Latency(Arc<AtomicU64>);

impl Latency {
    pub fn set(&self, one_way: Duration) {
        self.0.store(one_way.as_nanos() as u64, Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// Starts a link to `target`; its address.
pub fn link(target: &str, latency: &Latency) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (target, latency) = (target.to_owned(), latency.clone());
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.unwrap();
            // A target that is gone closes the connection, as it would itself.
            if let Ok(server) = TcpStream::connect(&target) {
                for stream in [&client, &server] {
                    stream.set_nodelay(true).unwrap();
                }
                carry(
                    client.try_clone().unwrap(),
                    server.try_clone().unwrap(),
                    latency.clone(),
                );
                carry(server, client, latency.clone());
            }
        }
    });
    address
}

/// Carries bytes in one direction until a side closes. What is under way does not keep later bytes back.
fn carry(mut from: TcpStream, mut to: TcpStream, latency: Latency) {
    let (sender, under_way) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let arrives = Instant::now() + latency.get();
            if sender.send((arrives, buffer[..length].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (arrives, bytes) in under_way {
            thread::sleep(arrives.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
