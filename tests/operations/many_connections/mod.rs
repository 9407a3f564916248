//! Ten thousand connections at once: most of them idle, a thousand of them hostile, and among them clients that just work.
//!
//! Upstream of most is a relay in this process that answers handshakes itself, as every member of a replica set would, and
//! connects to the replica set for whatever comes after: ten thousand connections cost a real server more than this test
//! is about. Where the system allows fewer open files than twenty-two thousand, there are fewer connections, which it says.

#![allow(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

#[allow(dead_code, reason = "the tests of an operator's hands need more of it")]
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bson::{Document, doc};
use keyward::wire::{Compressor, Draft, Flags, Header, OpCode, compress};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use testbed::ReplicaSet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use testkit::keyward::Keyward;

const CONNECTIONS: usize = 10_000;
const HOSTILE: usize = 1_000;
const GOOD: usize = 32;
/// So many open files are left to the tests beside this one, which run in the same process.
const FILES_OF_OTHERS: u64 = 2_000;
/// What good clients do each, while the others are there.
const OPERATIONS: usize = 20;

fn message(body: &Document, flags: u32) -> Vec<u8> {
    let body = body.to_vec().unwrap();
    let draft = Draft {
        flags: Flags(flags),
        ..Draft::of_body(&body)
    };
    draft.frame(7, 0).unwrap().to_vec()
}

fn hello() -> Vec<u8> {
    message(&doc! { "hello": 1, "$db": "admin" }, 0)
}

async fn receive(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; Header::SIZE];
    stream.read_exact(&mut bytes).await?;
    let length = Header::read(&bytes).unwrap().unwrap().length;
    bytes.resize(length, 0);
    stream.read_exact(&mut bytes[Header::SIZE..]).await?;
    Ok(bytes)
}

/// Answers handshakes with what the server at `to` says of itself, until something else comes; gives its address.
async fn relay(to: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut server = TcpStream::connect(&to).await.unwrap();
    server.write_all(&hello()).await.unwrap();
    let answer: Arc<[u8]> = receive(&mut server).await.unwrap().into();
    tokio::spawn(async move {
        loop {
            let Ok((client, _)) = listener.accept().await else {
                continue;
            };
            tokio::spawn(relay_one(client, to.clone(), answer.clone()));
        }
    });
    address
}

async fn relay_one(mut client: TcpStream, to: String, answer: Arc<[u8]>) -> std::io::Result<()> {
    loop {
        let asked = receive(&mut client).await?;
        let has = |needle: &[u8]| asked.windows(needle.len()).any(|window| window == needle);
        // Keyward's own client and drivers talk to the server itself.
        if asked.len() > 80 || !has(b"\x10hello\0") {
            let mut server = TcpStream::connect(to).await?;
            server.write_all(&asked).await?;
            tokio::io::copy_bidirectional(&mut client, &mut server).await?;
            return Ok(());
        }
        let mut answer = answer.to_vec();
        answer[8..12].copy_from_slice(&asked[4..8]);
        client.write_all(&answer).await?;
    }
}

/// What the hostile ones send, by turns; some are sent after a handshake.
fn hostile(number: usize) -> (bool, Vec<u8>) {
    let stated = |length: i32, op_code: i32| {
        let mut bytes = vec![0x55; 4096];
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[8..12].fill(0);
        bytes[12..16].copy_from_slice(&op_code.to_le_bytes());
        bytes
    };
    let bytes = match number % 8 {
        0 => (0..4096_usize).map(|byte| (byte * 31 + number) as u8).collect(),
        1 => message(&doc! { "ping": 1, "x": "y".repeat(100_000), "$db": "admin" }, 0)[..60_000].to_vec(),
        2 => stated(48_000_000, 2013),
        3 => stated(i32::MAX, 2013),
        4 => stated(-5, 2013),
        5 => bomb(Compressor::Zlib),
        6 => bomb(Compressor::Zstd),
        _ => b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    };
    (number % 16 >= 8, bytes)
}

/// A small message that says, and means, 47 MB: all zeros, which no server takes for a command.
fn bomb(compressor: Compressor) -> Vec<u8> {
    static BOMBS: [std::sync::OnceLock<Vec<u8>>; 2] = [const { std::sync::OnceLock::new() }; 2];
    let at = usize::from(compressor == Compressor::Zstd);
    let bomb = BOMBS[at].get_or_init(|| {
        let mut large = vec![0; 47_000_000];
        let header = Header {
            length: large.len(),
            request_id: 3,
            response_to: 0,
            op_code: OpCode::MSG,
        };
        large[..Header::SIZE].copy_from_slice(&header.bytes());
        compress(&large, compressor).unwrap()
    });
    bomb.clone()
}

/// Sends the same again and again, on a new connection wherever the old one is closed.
async fn attack(address: String, number: usize, stop: Arc<AtomicBool>, sent: Arc<AtomicUsize>) {
    let (greets, bytes) = hostile(number);
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect(&address).await else {
            continue;
        };
        if greets && (stream.write_all(&hello()).await.is_err() || receive(&mut stream).await.is_err()) {
            continue;
        }
        let _ = stream.write_all(&bytes).await;
        sent.fetch_add(1, Ordering::Relaxed);
        // Held for as long as it is let, and not for long after it is closed.
        let closed = async { while matches!(stream.read(&mut [0; 512]).await, Ok(1..)) {} };
        let _ = tokio::time::timeout(Duration::from_secs(2), closed).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// A client that inserts into the protected collection and reads it again; the time of its slowest operation.
async fn work(address: String, number: usize) -> Duration {
    let client = mongodb::Client::with_uri_str(format!("mongodb://{address}/"))
        .await
        .unwrap();
    let users = client.database("many").collection::<Document>("users");
    let mut slowest = Duration::ZERO;
    for n in 0..OPERATIONS {
        let begun = Instant::now();
        let email = format!("{number}-{n}@x");
        users.insert_one(doc! { "_id": &email, "email": &email }).await.unwrap();
        let twice = users.insert_one(doc! { "email": &email }).await.unwrap_err();
        assert!(twice.to_string().contains("E11000"), "{twice}");
        assert!(users.find_one(doc! { "_id": &email }).await.unwrap().is_some());
        slowest = slowest.max(begun.elapsed() / 3);
    }
    slowest
}

/// Resident memory of a process: now and at its highest, in bytes.
fn memory(pid: nix::unistd::Pid) -> (usize, usize) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    };
    (kib("VmRSS:"), kib("VmHWM:"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_of_ten_thousand_clients_are_hostile() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let files = usize::try_from(hard.saturating_sub(FILES_OF_OTHERS)).unwrap_or(usize::MAX);
    let connections = CONNECTIONS.min(files / 2);
    let hostile = HOSTILE.min(connections / 10);
    // A driver has a connection to work with, and some to monitor with.
    let idle = connections - hostile - 4 * GOOD;
    let set = tokio::task::spawn_blocking(ReplicaSet::shared).await.unwrap();
    set.client().database("many").drop().await.unwrap();
    let upstream = relay(set.addresses().remove(0)).await;
    let settings = format!(
        "upstream: mongodb://{upstream}/?directConnection=true\nlog: {{ level: error }}\n\
         limits: {{ message_timeout: 10s, handshake_timeout: 10s, max_buffered_bytes: 134217728 }}\n\
         constraints:\n  - {{ collection: many.users, key: {{ email: 1 }} }}\n"
    );
    let keyward = tokio::task::spawn_blocking(move || Keyward::of(&settings))
        .await
        .unwrap();
    let (empty, _) = memory(keyward.pid());
    let mut held = Vec::with_capacity(idle);
    for _ in 0..idle {
        let mut stream = TcpStream::connect(&keyward.address).await.unwrap();
        stream.write_all(&hello()).await.unwrap();
        receive(&mut stream).await.unwrap();
        held.push(stream);
    }
    let (with_idle, _) = memory(keyward.pid());
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let attackers: Vec<_> = (0..hostile)
        .map(|number| tokio::spawn(attack(keyward.address.clone(), number, stop.clone(), sent.clone())))
        .collect();
    let good: Vec<_> = (0..GOOD)
        .map(|number| tokio::spawn(work(keyward.address.clone(), number)))
        .collect();
    let mut slowest = Duration::ZERO;
    for client in good {
        slowest = slowest.max(client.await.unwrap());
    }
    stop.store(true, Ordering::Relaxed);
    let (_, highest) = memory(keyward.pid());
    for attacker in attackers {
        attacker.await.unwrap();
    }
    // Who was there all the time still is.
    for stream in held.iter_mut().step_by(100) {
        stream.write_all(&hello()).await.unwrap();
        receive(stream).await.unwrap();
    }
    let mib = |bytes: usize| bytes / 1024 / 1024;
    println!(
        "{idle} idle connections: {} MiB, of which {} MiB without any; with {hostile} hostile ones ({} attacks) {} MiB at \
         most; the slowest operation of {GOOD} good clients took {slowest:?}",
        mib(with_idle),
        mib(empty),
        sent.load(Ordering::Relaxed),
        mib(highest)
    );
    assert!(sent.load(Ordering::Relaxed) >= hostile);
    assert!(mib(with_idle - empty) < 300, "{} MiB", mib(with_idle));
    assert!(mib(highest) < 500, "{} MiB", mib(highest));
    assert!(slowest < Duration::from_secs(20), "{slowest:?}");
}
