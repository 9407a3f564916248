//! A name server for one domain, on a loopback address of its own: resolvers are told an address, never a port.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::{A, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};

const PORT: u16 = 53;
const TTL: u32 = 60;

/// What it knows: records by name.
type Records = Arc<Mutex<Vec<(String, RData)>>>;

pub struct NameServer {
    pub address: Ipv4Addr,
    records: Records,
    asked: Arc<AtomicUsize>,
}

impl NameServer {
    /// Starts one that knows nothing yet; none where port 53 isn't to be had.
    pub fn start() -> Option<NameServer> {
        let (address, socket) = (0..100).find_map(|_| {
            let [second, third, fourth] = rand::random::<[u8; 3]>();
            let address = Ipv4Addr::new(127, second.max(1), third, fourth.clamp(1, 254));
            Some((address, UdpSocket::bind((address, PORT)).ok()?))
        })?;
        let server = NameServer {
            address,
            records: Arc::default(),
            asked: Arc::default(),
        };
        let (records, asked) = (server.records.clone(), server.asked.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let answer = answer(&buffer[..length], &records.lock().unwrap());
                asked.fetch_add(1, Ordering::Relaxed);
                socket.send_to(&answer, from).unwrap();
            }
        });
        Some(server)
    }

    /// How often it has answered.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// Has `service` be at this port of `host`, which is this machine, with `options` of the connection string.
    pub fn publish(&self, service: &str, host: &str, port: u16, options: &str) {
        let srv = SRV::new(0, 0, port, name(host));
        self.records.lock().unwrap().extend([
            (format!("_mongodb._tcp.{service}."), RData::SRV(srv)),
            (format!("{service}."), RData::TXT(TXT::new(vec![options.to_owned()]))),
            (format!("{host}."), RData::A(A(Ipv4Addr::LOCALHOST))),
        ]);
    }
}

fn name(host: &str) -> Name {
    Name::from_ascii(format!("{host}.")).unwrap()
}

fn answer(query: &[u8], records: &[(String, RData)]) -> Vec<u8> {
    let query = Message::from_vec(query).unwrap();
    let mut answer = Message::response(query.metadata.id, query.metadata.op_code);
    answer.metadata.recursion_desired = query.metadata.recursion_desired;
    answer.metadata.recursion_available = true;
    let asked = query.queries[0].clone();
    let of_name = |(name, _): &&(String, RData)| name.eq_ignore_ascii_case(&asked.name().to_ascii());
    let known: Vec<_> = records.iter().filter(of_name).collect();
    if known.is_empty() {
        answer.metadata.response_code = ResponseCode::NXDomain;
    }
    for (_, data) in known {
        let is_wanted = matches!(
            (asked.query_type(), data),
            (RecordType::SRV, RData::SRV(_)) | (RecordType::TXT, RData::TXT(_)) | (RecordType::A, RData::A(_))
        );
        if is_wanted {
            answer.add_answer(Record::from_rdata(asked.name().clone(), TTL, data.clone()));
        }
    }
    answer.add_query(asked);
    answer.to_vec().unwrap()
}
