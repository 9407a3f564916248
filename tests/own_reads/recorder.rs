//! A relay before the router, which keeps the body of each command that passes.

use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use bson::Document;

use crate::forwarder::{Fate, pass};

/// Where an OP_MSG's body begins: after the header, the flags and the section's kind.
const BODY: usize = 21;

pub struct Recorder {
    pub address: String,
    commands: Arc<Mutex<Vec<Document>>>,
}

impl Recorder {
    pub fn start(target: String) -> Recorder {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let commands: Arc<Mutex<Vec<Document>>> = Arc::default();
        let kept = commands.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let server = TcpStream::connect(&target).unwrap();
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let kept = kept.clone();
                std::thread::spawn(move || {
                    pass(&from, &to, |message| {
                        // What isn't an OP_MSG greets.
                        if let Some(Ok(body)) = message.get(BODY..).map(Document::from_reader) {
                            kept.lock().unwrap().push(body);
                        }
                        Fate::Passed
                    })
                });
                std::thread::spawn(move || pass(&server, &client, |_| Fate::Passed));
            }
        });
        Recorder { address, commands }
    }

    pub fn uri(&self) -> String {
        format!("mongodb://{}/", self.address)
    }

    /// What has passed so far.
    pub fn commands(&self) -> Vec<Document> {
        self.commands.lock().unwrap().clone()
    }
}
