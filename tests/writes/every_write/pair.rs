//! One collection twice: sharded behind a Keyward, and unsharded with native unique indexes. Whatever is run on the pair
//! must look the same from outside, but for what `docs/differences.md` lists.

use std::collections::BTreeSet;

use bson::{Bson, Document, doc};
use keyward::constraint::{Constraint, IndexSpec, Key};
use keyward::namespace::Namespace;
use keyward::raw::Doc;

use crate::every_write::differences::{Verdict, is_duplicate, is_failure, is_of_many, judge};
use crate::every_write::generate::{Step, session};
use testkit::wire::{Connection, is_ok};

/// How often a transaction is tried again that a server calls transient, as `withTransaction` does.
const TRIES: usize = 4;

/// What ran, to see that it tests something.
#[derive(Debug, Default, Clone, Copy)]
pub struct Seen {
    pub commands: usize,
    pub errors: usize,
    pub transactions: usize,
    pub duplicates: usize,
    /// Upserts that inserted, upserts that matched, and those of either that were repeated.
    pub upserts: [usize; 3],
    /// Commands that were repeated after others.
    pub late: usize,
    /// Updates of one document that compute a value from the old one, and those of them that were repeated.
    pub computed: [usize; 2],
    /// Updates that state the `_id`, perhaps in another form.
    pub restated: usize,
    pub intended: usize,
}

impl Seen {
    /// Notes an update with an operator that computes a field's value.
    fn note_computed(&mut self, command: &Document, reply: &Document) {
        let update = match command.get_array("updates").map(Vec::as_slice) {
            Ok([Bson::Document(statement)]) if !statement.contains_key("multi") => statement.get_document("u"),
            _ => command.get_document("update"),
        };
        let computes = |name: &str| matches!(name, "$inc" | "$mul" | "$min" | "$max");
        if update.is_ok_and(|update| update.keys().any(|name| computes(name))) && !is_failure(reply) {
            let is_repeated = reply.keys().any(|name| name.starts_with("retriedStmtId"));
            self.computed[0] += 1;
            self.computed[1] += usize::from(is_repeated);
        }
    }

    /// Notes an update of one document that states its `_id`.
    fn note_restated(&mut self, command: &Document, reply: &Document) {
        let statement = match command.get_array("updates").map(Vec::as_slice) {
            Ok([Bson::Document(statement)]) => statement,
            Ok(_) => return,
            Err(_) => command,
        };
        let states_id = |update: &Document| {
            let set = update.get_document("$set").unwrap_or(update);
            set.contains_key("_id")
        };
        let states_id = match statement.get("u").or_else(|| statement.get("update")) {
            Some(Bson::Document(update)) => states_id(update),
            Some(Bson::Array(stages)) => stages.iter().filter_map(Bson::as_document).any(states_id),
            _ => false,
        };
        self.restated += usize::from(states_id && !is_failure(reply));
    }

    /// Notes an upsert whose query names the `_id` and the shard key, and whose update is no pipeline.
    fn note_upsert(&mut self, command: &Document, reply: &Document) {
        let statement = match command.get_array("updates").map(Vec::as_slice) {
            Ok([Bson::Document(statement)]) => statement,
            Ok(_) => return,
            Err(_) => command,
        };
        let query = statement.get_document("q").or_else(|_| statement.get_document("query"));
        let update = statement
            .get_document("u")
            .or_else(|_| statement.get_document("update"));
        let (Ok(query), Ok(_), Ok(true)) = (query, update, statement.get_bool("upsert")) else {
            return;
        };
        if !["_id", "region"].iter().all(|name| query.contains_key(name)) || is_failure(reply) {
            return;
        }
        let result = reply.get_document("lastErrorObject").unwrap_or(reply);
        let is_repeated = reply.keys().any(|name| name.starts_with("retriedStmtId"));
        self.upserts[0] += usize::from(result.contains_key("upserted"));
        self.upserts[1] += usize::from(!result.contains_key("upserted"));
        self.upserts[2] += usize::from(is_repeated);
    }
}

pub struct Pair {
    pub database: String,
    pub collection: String,
    keyward: Connection,
    /// Through another Keyward, to which drivers send their retries.
    other: Connection,
    native: Connection,
    /// Past the Keyward, to see its reservations.
    router: Connection,
    constraints: Vec<Constraint>,
    pub seen: Seen,
}

/// How the difference begins that was there before the sequence: what the one before it left.
pub const NOT_EMPTIED: &str = "before the first step";

/// What differs, in words.
pub type Difference = String;

impl Pair {
    pub fn new(
        database: &str,
        collection: &str,
        keywards: [&str; 2],
        router: &str,
        native: &str,
        indexes: &[Document],
        collation: Option<&Document>,
    ) -> Self {
        let mut native = Connection::open(native);
        native.run(database, &doc! { "drop": collection });
        let mut create = doc! { "create": collection };
        create.extend(collation.map(|collation| ("collation".to_owned(), collation.into())));
        native.must(database, &create);
        for index in indexes {
            let mut index = index.clone();
            index.insert("unique", true);
            index.remove("route");
            native.must(database, &doc! { "createIndexes": collection, "indexes": [index] });
        }
        let constraints = indexes.iter().map(|index| {
            let spec = IndexSpec {
                key: index.get_document("key").unwrap().clone(),
                name: Some(index.get_str("name").unwrap().to_owned()),
                sparse: index.get_bool("sparse").unwrap_or(false),
                partial_filter_expression: index.get_document("partialFilterExpression").ok().cloned(),
                collation: index.get_document("collation").ok().or(collation).cloned(),
                ..IndexSpec::default()
            };
            Constraint::new(Namespace::new(database, collection), spec).unwrap()
        });
        Pair {
            database: database.to_owned(),
            collection: collection.to_owned(),
            keyward: Connection::open(keywards[0]),
            other: Connection::open(keywards[1]),
            native,
            router: Connection::open(router),
            constraints: constraints.collect(),
            seen: Seen::default(),
        }
    }

    /// Empties both, and runs the steps on both.
    pub fn run(&mut self, steps: &[Step]) -> Result<(), Difference> {
        let everything = doc! { "delete": &self.collection, "deletes": [{ "q": {}, "limit": 0 }] };
        self.keyward.must(&self.database, &everything);
        self.native.must(&self.database, &everything);
        self.agree()
            .map_err(|difference| format!("{NOT_EMPTIED}: {difference}"))?;
        for (number, step) in steps.iter().enumerate() {
            self.step(step)
                .map_err(|difference| format!("step {number}: {step}\n{difference}"))?;
        }
        self.same_documents()?;
        self.agree()
    }

    fn step(&mut self, step: &Step) -> Result<(), Difference> {
        match step {
            Step::Command(command) => self.command(&in_session(command)),
            Step::Twice(command) => {
                let command = &in_session(command);
                self.command(command)?;
                let repeated = self.repeat(command);
                // The server's memory of a findAndModify isn't projected; Keyward's is the first reply.
                match command.contains_key("fields") {
                    true => Ok(()),
                    false => repeated.map_err(|difference| format!("repeated: {difference}")),
                }
            }
            Step::Late { command, between } => self.late(&in_session(command), between),
            Step::Transaction { commands, commit } => self.transaction(commands, *commit),
        }
    }

    /// Repeats the command after the others, if it had an effect: a server remembers no other one.
    fn late(&mut self, command: &Document, between: &[Document]) -> Result<(), Difference> {
        let before = self.native.all(&self.database, &self.collection);
        self.command(command)?;
        let has_effect = self.native.all(&self.database, &self.collection) != before;
        for command in between {
            self.command(command)?;
        }
        if !has_effect {
            return Ok(());
        }
        self.seen.late += 1;
        let repeated = self.repeat(command);
        match command.contains_key("fields") {
            true => self.same_documents(),
            false => repeated.map_err(|difference| format!("repeated late: {difference}")),
        }
    }

    /// Sends the command through the other Keyward.
    fn repeat(&mut self, command: &Document) -> Result<(), Difference> {
        std::mem::swap(&mut self.keyward, &mut self.other);
        let repeated = self.command(command);
        std::mem::swap(&mut self.keyward, &mut self.other);
        repeated
    }

    fn command(&mut self, command: &Document) -> Result<(), Difference> {
        let native = match is_of_many(command) {
            // Alone it would keep half of what it did before an error.
            true => {
                let mut transaction = Open::begin();
                let reply = transaction.run(&mut self.native, &self.database, command);
                if !is_failure(&reply) {
                    transaction.end(&mut self.native, "commitTransaction");
                }
                reply
            }
            false => self.native.run(&self.database, command),
        };
        let keyward = self.keyward.run(&self.database, command);
        match self.compare(command, &keyward, &native)? {
            Verdict::OtherOutcome => self.level(),
            Verdict::Halfway if self.same_documents().is_ok() => Ok(()),
            Verdict::Halfway => {
                self.same_keys()?;
                self.level()
            }
            _ => Ok(()),
        }
    }

    fn transaction(&mut self, commands: &[Document], commit: bool) -> Result<(), Difference> {
        self.seen.transactions += 1;
        let mut difference = None;
        for _ in 0..TRIES {
            match self.try_transaction(commands, commit) {
                Ok(()) => return Ok(()),
                Err(Failed::Transient(reply)) => difference = Some(format!("transient again and again: {reply}")),
                Err(Failed::Differs(difference)) => return Err(difference),
            }
        }
        difference.map_or(Ok(()), Err)
    }

    fn try_transaction(&mut self, commands: &[Document], commit: bool) -> Result<(), Failed> {
        let (mut keyward, mut native) = (Open::begin(), Open::begin());
        let end = if commit {
            "commitTransaction"
        } else {
            "abortTransaction"
        };
        for command in commands {
            let expected = native.run(&mut self.native, &self.database, command);
            let got = keyward.run(&mut self.keyward, &self.database, command);
            if is_transient(&got) {
                keyward.end(&mut self.keyward, "abortTransaction");
                native.end(&mut self.native, "abortTransaction");
                return Err(Failed::Transient(got));
            }
            let compared = self.compare(command, &got, &expected);
            if compared.is_err() || is_failure(&expected) || is_failure(&got) {
                // One of them may have succeeded where the other one failed.
                keyward.end(&mut self.keyward, "abortTransaction");
                native.end(&mut self.native, "abortTransaction");
                return compared.map(|_| ()).map_err(Failed::Differs);
            }
        }
        let expected = native.end(&mut self.native, end);
        let got = keyward.end(&mut self.keyward, end);
        match is_ok(&got) == is_ok(&expected) {
            true => Ok(()),
            false => Err(Failed::Differs(format!("{end}: Keyward {got}\nnatively {expected}"))),
        }
    }

    fn compare(&mut self, command: &Document, keyward: &Document, native: &Document) -> Result<Verdict, Difference> {
        let (got, expected) = (comparable(keyward), comparable(native));
        self.seen.commands += 1;
        self.seen.errors += usize::from(is_failure(&expected));
        self.seen.duplicates += usize::from(is_duplicate(&expected));
        self.seen.note_upsert(command, native);
        self.seen.note_computed(command, native);
        self.seen.note_restated(command, native);
        let verdict = judge(command, &got, &expected);
        self.seen.intended += usize::from(verdict != Verdict::Same);
        match verdict {
            Verdict::Different => Err(format!("Keyward  {got}\nnatively {expected}")),
            verdict => Ok(verdict),
        }
    }

    /// Gives the native collection the documents of the other.
    fn level(&mut self) -> Result<(), Difference> {
        self.agree()?;
        let documents = self.router.all(&self.database, &self.collection);
        let everything = doc! { "delete": &self.collection, "deletes": [{ "q": {}, "limit": 0 }] };
        self.native.must(&self.database, &everything);
        if !documents.is_empty() {
            let reply = self.native.must(
                &self.database,
                &doc! { "insert": &self.collection, "documents": documents },
            );
            if is_failure(&reply) {
                return Err(format!("natively the outcome is a duplicate: {reply}"));
            }
        }
        Ok(())
    }

    fn same_documents(&mut self) -> Result<(), Difference> {
        let (got, expected) = (
            self.router.all(&self.database, &self.collection),
            self.native.all(&self.database, &self.collection),
        );
        let bytes = |documents: &[Document]| -> Vec<Vec<u8>> {
            documents.iter().map(|document| document.to_vec().unwrap()).collect()
        };
        match bytes(&got) == bytes(&expected) {
            true => Ok(()),
            false => Err(format!("documents differ\nKeyward  {got:?}\nnatively {expected:?}")),
        }
    }

    /// What differs in the documents is no key.
    fn same_keys(&mut self) -> Result<(), Difference> {
        let (got, expected) = (
            self.router.all(&self.database, &self.collection),
            self.native.all(&self.database, &self.collection),
        );
        for constraint in &self.constraints {
            let keys = |documents: &[Document]| -> BTreeSet<Key> {
                let bytes = documents.iter().map(|document| document.to_vec().unwrap());
                bytes
                    .flat_map(|bytes| constraint.keys(Doc::new(&bytes).unwrap()).unwrap())
                    .collect()
            };
            if keys(&got) != keys(&expected) {
                return Err(format!("a part was changed\nKeyward  {got:?}\nnatively {expected:?}"));
            }
        }
        Ok(())
    }

    /// Every document's keys are reserved by it, and nothing else is reserved.
    fn agree(&mut self) -> Result<(), Difference> {
        let documents = self.router.all(&self.database, &self.collection);
        for constraint in &self.constraints {
            let mut held = BTreeSet::new();
            for document in &documents {
                let bytes = document.to_vec().unwrap();
                let keys = constraint.keys(Doc::new(&bytes).unwrap()).unwrap();
                let owner = by_value(document.get("_id").unwrap());
                let region = by_value(document.get("region").unwrap_or(&Bson::Null));
                held.extend(keys.into_iter().map(|key| (key, owner.clone(), region.clone())));
            }
            let proxy = constraint.proxy_collection().collection;
            let reservations = self.router.all(&self.database, &proxy);
            let reserved: BTreeSet<(Key, String, String)> = reservations
                .iter()
                .map(|reservation| {
                    let id = reservation.get_document("_id").unwrap().to_vec().unwrap();
                    let id = bson::RawDocument::from_bytes(&id).unwrap();
                    let key = Key::from_reservation_id(constraint, id).unwrap();
                    let route = reservation.get_document("route").unwrap();
                    let owner = by_value(reservation.get("owner").unwrap());
                    (key, owner, by_value(route.get("region").unwrap()))
                })
                .collect();
            if held != reserved {
                return Err(format!(
                    "{}: held but not reserved {:?}\nreserved but not held {:?}\nof {documents:?}",
                    constraint.name(),
                    held.difference(&reserved).collect::<Vec<_>>(),
                    reserved.difference(&held).collect::<Vec<_>>(),
                ));
            }
        }
        Ok(())
    }
}

/// Equal for values that the server calls equal: numbers of several types, also within a document.
fn by_value(value: &Bson) -> String {
    match value {
        Bson::Int64(number) => number.to_string(),
        // Zero may be negative.
        Bson::Double(number) => (*number + 0.0).to_string(),
        Bson::Decimal128(number) => number.to_string().trim_end_matches(".0").to_owned(),
        Bson::Document(parts) => {
            let parts = parts.iter().map(|(name, part)| format!("{name}: {}", by_value(part)));
            format!("{{ {} }}", parts.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

enum Failed {
    Transient(Document),
    Differs(Difference),
}

/// A retryable command needs a session; a new one each time, as the servers remember what ran in it.
fn in_session(command: &Document) -> Document {
    let mut command = command.clone();
    if command.contains_key("txnNumber") {
        command.insert("lsid", session(rand::random()));
    }
    command
}

/// A client's open transaction.
struct Open {
    fields: Document,
    is_first: bool,
}

impl Open {
    fn begin() -> Self {
        let fields = doc! { "lsid": session(rand::random()), "txnNumber": 1_i64, "autocommit": false };
        Open { fields, is_first: true }
    }

    fn run(&mut self, connection: &mut Connection, database: &str, command: &Document) -> Document {
        let mut command = command.clone();
        command.extend(self.fields.clone());
        if std::mem::take(&mut self.is_first) {
            command.insert("startTransaction", true);
        }
        connection.run(database, &command)
    }

    fn end(&mut self, connection: &mut Connection, how: &str) -> Document {
        let mut command = doc! { how: 1 };
        command.extend(self.fields.clone());
        connection.run("admin", &command)
    }
}

/// The reply without times, and without what only tells a repetition.
fn comparable(reply: &Document) -> Document {
    let mut reply = reply.clone();
    for field in [
        "$clusterTime",
        "operationTime",
        "electionId",
        "opTime",
        "recoveryToken",
        "retriedStmtIds",
        "retriedStmtId",
    ] {
        reply.remove(field);
    }
    reply
}

fn is_transient(reply: &Document) -> bool {
    let labels = reply.get_array("errorLabels");
    labels.is_ok_and(|labels| labels.contains(&Bson::String("TransientTransactionError".to_owned())))
}
