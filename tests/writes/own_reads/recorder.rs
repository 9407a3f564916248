//! A relay before the router, which keeps the body of each command that passes.

use std::sync::{Arc, Mutex};

use bson::Document;
use testkit::relay::{Fate, Relay};
use testkit::wire::BODY;

pub struct Recorder {
    relay: Relay,
    commands: Arc<Mutex<Vec<Document>>>,
}

impl Recorder {
    pub fn start(target: String) -> Recorder {
        let commands: Arc<Mutex<Vec<Document>>> = Arc::default();
        let kept = commands.clone();
        let keep = move |message: &[u8]| {
            // What isn't an OP_MSG greets.
            if let Some(Ok(body)) = message.get(BODY..).map(Document::from_reader) {
                kept.lock().unwrap().push(body);
            }
            Fate::Passed
        };
        let relay = Relay::judged(target, keep, |_| Fate::Passed);
        Recorder { relay, commands }
    }

    pub fn uri(&self) -> String {
        self.relay.uri()
    }

    /// What has passed so far.
    pub fn commands(&self) -> Vec<Document> {
        self.commands.lock().unwrap().clone()
    }
}
