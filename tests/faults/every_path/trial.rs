//! One write whose Keyward is killed at one step, and what others, and its client, find after that.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};

use crate::every_path::gate::{Gate, Last};
use crate::every_path::killed::{Trials, settings};
use crate::every_path::paths::{self, Kind, Path, first_statements};
use testkit::wire::send;
use testkit::{Keyward, comparable};

/// Nobody waits longer, nor where a transaction is open that nobody goes on with.
const FREE_AT_LAST_WITHIN: Duration = Duration::from_secs(30);
const OPEN_TRANSACTION_GONE_WITHIN: Duration = Duration::from_secs(45);

/// What happens to a write.
enum Event {
    Answered(Document),
    Hit,
    Ended,
}

/// One write whose Keyward is killed at one step.
pub struct Trial {
    all: Arc<Trials>,
    path: &'static Path,
    base: i32,
    step: usize,
    last: Last,
    commands: Vec<Document>,
    /// How many of the commands were answered.
    answered: AtomicUsize,
    /// How many of its statements the native server has done as commands of their own.
    replayed: AtomicUsize,
    /// The steps that were taken.
    steps: Mutex<Vec<String>>,
}

impl Trial {
    /// With its document in place, here and natively.
    pub fn prepare(all: Arc<Trials>, path: &'static Path, base: i32, step: usize, last: Last) -> Trial {
        let there = doc! { "insert": "users", "documents": paths::there(base) };
        for address in [&all.native, &all.other.address] {
            let reply = send(address, all.database, there.clone()).unwrap();
            assert_eq!(reply.get_i32("n").ok(), Some(2), "{reply}");
        }
        let mut commands = (path.write)(base);
        if let Ok(namespaces) = commands[0].get_array_mut("nsInfo") {
            *namespaces = vec![doc! { "ns": format!("{}.users", all.database) }.into()];
        }
        Trial {
            commands,
            all,
            path,
            base,
            step,
            last,
            answered: AtomicUsize::new(0),
            replayed: AtomicUsize::new(0),
            steps: Mutex::default(),
        }
    }

    fn name(&self) -> String {
        format!(
            "{}, {}, {:?} at step {}, {}",
            self.all.strategy(),
            self.path.name,
            self.last,
            self.step,
            self.base
        )
    }

    /// Sends the write through a Keyward that dies at the step, or after the last one; whether that was all of them.
    pub fn kill(&self, gate: &Gate) -> bool {
        let (tell, events) = mpsc::channel();
        let (hit, is_hit) = mpsc::channel();
        let round = gate.begin(Some((self.step, self.last)), hit);
        // The very address: a driver would go on to the one that a replica set's member tells.
        let upstream = format!("mongodb://{}/?directConnection=true", gate.address());
        let mut keyward = Keyward::start_with_lease(&upstream, &settings(), &self.all.constraints);
        round.arm();
        let (address, commands, database) = (keyward.address.clone(), self.commands.clone(), self.all.database);
        let done = tell.clone();
        std::thread::spawn(move || {
            for command in commands {
                let database = database_of(&command, database);
                match send(&address, database, command) {
                    Ok(reply) => drop(done.send(Event::Answered(reply))),
                    Err(_) => return,
                }
            }
            let _ = done.send(Event::Ended);
        });
        std::thread::spawn(move || is_hit.recv().map(|()| tell.send(Event::Hit)));
        let has_ended = loop {
            match events.recv().unwrap() {
                Event::Answered(reply) => {
                    assert!(
                        is_ok(&reply) && !reply.contains_key("writeErrors"),
                        "{}: {reply}",
                        self.name()
                    );
                    self.answered.fetch_add(1, Ordering::Relaxed);
                }
                Event::Hit => break false,
                Event::Ended => break true,
            }
        };
        keyward.kill();
        round.killed();
        *self.steps.lock().unwrap() = round.steps();
        if has_ended {
            self.all.took(self.path, round.steps());
        }
        has_ended
    }

    /// What others, and the client itself, find after that.
    pub fn follow(&self) {
        match self.last {
            Last::Unsent => {
                self.replay_natively_what_took_effect();
                self.want_the_keys();
                self.send_again();
            }
            Last::Late => {
                self.send_again();
                self.want_the_keys();
            }
        }
    }

    /// The client that was cut off sends its write again, through the other Keyward.
    fn send_again(&self) {
        match self.path.kind {
            Kind::Retryable => {
                let expected = as_first(self.natively(self.commands[0].clone()));
                let got = as_first(self.send(self.commands[0].clone()));
                assert_eq!(got, expected, "{}", self.name());
            }
            Kind::Plain => {
                self.send(self.commands[0].clone());
                self.natively(self.commands[0].clone());
            }
            Kind::Bulk => {
                let reply = self.send(self.commands[0].clone());
                assert_eq!(
                    reply.get_i32("nErrors").ok(),
                    Some(self.finish_natively()),
                    "{}: {reply}",
                    self.name()
                );
            }
            Kind::Transaction => self.run_transaction_again(),
        }
    }

    /// Has the native server do those of the statements that it hasn't done, up to the first that fails; how many failed.
    fn finish_natively(&self) -> i32 {
        loop {
            let count = self.replayed.fetch_add(1, Ordering::Relaxed) + 1;
            let Some(statement) = first_statements(&self.commands[0], count) else {
                return 0;
            };
            if self.natively(statement).contains_key("writeErrors") {
                return 1;
            }
        }
    }

    fn natively(&self, command: Document) -> Document {
        send(&self.all.native, self.all.database, command).unwrap()
    }

    fn send(&self, command: Document) -> Document {
        let address = match self.leaves_a_transaction_open() {
            true => &self.all.patient.address,
            false => &self.all.other.address,
        };
        let database = database_of(&command, self.all.database);
        let mut reply = send(address, database, command.clone());
        // A driver tries once more where a label says so.
        if reply
            .as_ref()
            .is_ok_and(|reply| has_label(reply, "RetryableWriteError"))
        {
            reply = send(address, database, command);
        }
        reply.unwrap_or_else(|error| panic!("{}: {error}", self.name()))
    }

    /// As a driver does: the commit is asked for again if it was under way; otherwise, or if the server knows nothing of the
    /// transaction, all of it is done anew.
    fn run_transaction_again(&self) {
        let is_committed = self.answered.load(Ordering::Relaxed) + 1 >= self.commands.len() && {
            let reply = send(&self.all.other.address, "admin", self.commands.last().unwrap().clone()).unwrap();
            assert!(
                is_ok(&reply) || has_label(&reply, "TransientTransactionError"),
                "{}: {reply}",
                self.name()
            );
            is_ok(&reply)
        };
        if is_committed {
            if self.documents() != self.native_documents() {
                self.transact(&self.all.native, 1);
            }
            return;
        }
        assert_eq!(
            self.transact(&self.all.other.address, 2),
            self.transact(&self.all.native, 2),
            "{}",
            self.name()
        );
    }

    /// Runs the transaction under this number, again as long as the server asks for that; what it was answered.
    fn transact(&self, address: &str, number: i64) -> Vec<Document> {
        let mut replies = Vec::new();
        for command in &self.commands {
            let mut command = command.clone();
            command.insert("txnNumber", number);
            let reply = send(address, database_of(&command, self.all.database), command).unwrap();
            if has_label(&reply, "TransientTransactionError") {
                assert!(number < 1_000, "{}: {reply}", self.name());
                return self.transact(address, number + 1);
            }
            let is_ok = is_ok(&reply) && !reply.contains_key("writeErrors");
            replies.push(in_order(reply));
            if !is_ok {
                break;
            }
        }
        replies
    }

    /// Whoever wants a key that the write was about gets it, or a document holds it.
    fn want_the_keys(&self) {
        std::thread::scope(|scope| {
            for (offset, email) in [(8, paths::new(self.base)), (9, paths::old(self.base))] {
                scope.spawn(move || self.want(offset, email));
            }
        });
    }

    fn want(&self, offset: i32, email: String) {
        let document = doc! { "_id": self.base + offset, "region": "a", "email": email };
        let command = doc! { "insert": "users", "documents": [document] };
        let expected = comparable(self.natively(command.clone()));
        let asked = Instant::now();
        let got = comparable(self.send(command));
        let elapsed = asked.elapsed();
        assert_eq!(got, expected, "{}", self.name());
        let was_open = self.leaves_a_transaction_open();
        let within = match was_open {
            true => OPEN_TRANSACTION_GONE_WITHIN,
            false => FREE_AT_LAST_WITHIN,
        };
        assert!(elapsed < within, "{}: {elapsed:?}", self.name());
        self.all.waited(elapsed, was_open, self.name());
    }

    fn leaves_a_transaction_open(&self) -> bool {
        let steps = self.steps.lock().unwrap();
        let before = steps.iter().take(self.step);
        before
            .rev()
            .take_while(|step| !["commit", "abort"].contains(&step.as_str()))
            .any(|step| step.ends_with("(transaction)"))
    }

    /// Has the native server do as many of the write's statements as took effect here.
    fn replay_natively_what_took_effect(&self) {
        let documents = self.documents();
        while self.native_documents() != documents {
            let count = self.replayed.fetch_add(1, Ordering::Relaxed) + 1;
            let name = self.name();
            if self.path.kind == Kind::Transaction {
                assert!(count == 1, "{name}: {documents:?}");
                self.transact(&self.all.native, 1);
                continue;
            }
            let done = first_statements(&self.commands[0], count);
            self.natively(done.unwrap_or_else(|| panic!("{name}: {documents:?}")));
        }
    }

    fn native_documents(&self) -> Vec<Document> {
        self.documents_at(&self.all.native)
    }

    fn documents(&self) -> Vec<Document> {
        self.documents_at(&self.all.deployment.address)
    }

    /// The documents that the write is about, with all that was committed before.
    fn documents_at(&self, address: &str) -> Vec<Document> {
        let now = send(address, "admin", doc! { "ping": 1 }).unwrap();
        let now = now
            .get_document("$clusterTime")
            .unwrap()
            .get_timestamp("clusterTime")
            .unwrap();
        let find = doc! {
            "find": "users", "filter": { "_id": { "$gte": self.base, "$lt": self.base + 10 } }, "sort": { "_id": 1 },
            "readConcern": { "level": "majority", "afterClusterTime": now },
        };
        let reply = send(address, self.all.database, find).unwrap();
        let cursor = reply.get_document("cursor").unwrap_or_else(|_| panic!("{reply}"));
        let documents = cursor.get_array("firstBatch").unwrap().iter();
        documents
            .map(|document| document.as_document().unwrap().clone())
            .collect()
    }
}

fn is_ok(reply: &Document) -> bool {
    reply.get_f64("ok").ok() == Some(1.0)
}

fn database_of<'d>(command: &Document, database: &'d str) -> &'d str {
    match command.contains_key("commitTransaction") || command.contains_key("bulkWrite") {
        true => "admin",
        false => database,
    }
}

/// The reply without what differs between two servers.
fn in_order(reply: Document) -> Document {
    let mut reply = comparable(reply);
    reply.remove("recoveryToken");
    reply
}

/// The reply without what only a repetition has.
fn as_first(reply: Document) -> Document {
    let mut reply = comparable(reply);
    reply.remove("retriedStmtIds");
    reply.remove("retriedStmtId");
    reply
}

fn has_label(reply: &Document, label: &str) -> bool {
    let labels = reply.get_array("errorLabels");
    labels.is_ok_and(|labels| labels.contains(&Bson::String(label.to_owned())))
}
