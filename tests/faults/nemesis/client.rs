//! A client of an application: writes of every kind among a few documents and keys, each recorded with its outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bson::{Bson, Document, doc};
use futures_util::future::join_all;
use mongodb::error::{Error, ErrorKind, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT};
use mongodb::{ClientSession, Collection};
use rand::{Rng, rngs::StdRng};

use crate::nemesis::history::{Duplicate, History, Kind, Millis, Operation, Outcome, Statement, Verdict, now};
use crate::nemesis::phones::Phones;
use crate::nemesis::verdict::{judge, of_code};

const DOCUMENTS: i32 = 12;
const EMAILS: i32 = 9;
/// The name under which the insert of a newcomer is recorded.
const WITH_OTHERS: &str = "insert with others";
const TAGS: i32 = 12;
/// Each region is a chunk of its own.
pub const REGIONS: [&str; 4] = ["a", "b", "c", "d"];
/// So many newcomers are inserted at the same time, as many as a driver has connections to one server.
const NEWCOMERS: usize = 10;
/// How long a client rests at most before its next write: the servers share one machine with everything else.
const REST_MS: u64 = 30;

pub struct Client {
    pub number: usize,
    pub accounts: Collection<Document>,
    pub random: StdRng,
    pub history: Arc<History>,
    pub phones: Arc<Phones>,
}

/// What is done in a transaction of a client's own.
#[derive(Clone, Copy)]
enum Within {
    /// Two documents exchange their addresses.
    Swap,
    /// A document is removed, and another one takes its address.
    HandOver,
}

/// What is recorded of an operation once it has ended.
struct Ended {
    outcome: Outcome,
    statements: Vec<Statement>,
    duplicates: Vec<Duplicate>,
}

impl Ended {
    /// One statement, with what it did or an error.
    fn single(id: i32, kind: Kind, result: Result<bool, Error>) -> Ended {
        let (outcome, verdict, duplicate) = match result {
            Ok(true) => (Outcome::Ok, Verdict::Applied, None),
            Ok(false) => (Outcome::Ok, Verdict::Nothing, None),
            Err(error) => {
                let judged = judge(&error);
                (judged.outcome, judged.verdict, judged.duplicate)
            }
        };
        Ended {
            outcome,
            statements: vec![Statement { id, kind, verdict }],
            duplicates: duplicate.into_iter().map(|key| Duplicate { id, key }).collect(),
        }
    }
}

/// Whether this document is a newcomer: it was inserted at the same time as others.
pub fn is_newcomer(id: &Bson) -> bool {
    id.as_i32().is_some_and(|id| id >= DOCUMENTS)
}

pub fn region(id: i32) -> &'static str {
    REGIONS[usize::try_from(id).unwrap() % REGIONS.len()]
}

fn named(id: i32) -> Document {
    doc! { "_id": id, "region": region(id) }
}

impl Client {
    /// Writes until `is_over`.
    pub async fn run(mut self, is_over: Arc<AtomicBool>) {
        while !is_over.load(Ordering::Relaxed) {
            if self.random.random_ratio(1, 20) {
                self.insert_newcomers().await;
            } else {
                let began = now();
                let (name, ended) = self.write().await;
                self.record(name, began, ended);
            }
            let rest = Duration::from_millis(self.random.random_range(0..REST_MS));
            tokio::time::sleep(rest).await;
        }
    }

    fn record(&self, name: &'static str, began: Millis, ended: Ended) {
        self.history.record(Operation {
            client: self.number,
            name,
            began,
            ended: now(),
            outcome: ended.outcome,
            statements: ended.statements,
            duplicates: ended.duplicates,
        });
    }

    /// Inserts new documents, each by a command of its own, all at the same time; now and then one of them takes an address
    /// that others have or want.
    async fn insert_newcomers(&mut self) {
        let mut documents: Vec<Document> = (0..NEWCOMERS).map(|_| self.newcomer()).collect();
        if self.random.random_ratio(1, 8) {
            documents[self.random.random_range(0..NEWCOMERS)].insert("email", self.email());
        }
        let began = now();
        join_all(documents.into_iter().map(async |document| {
            let (id, writer) = (document.get_i32("_id").unwrap(), writer_of(&document).unwrap());
            let inserted = self.accounts.insert_one(document).await;
            let ended = Ended::single(id, Kind::Write(writer), inserted.map(|_| true));
            self.record(WITH_OTHERS, began, ended);
        }))
        .await;
    }

    /// A document that there has never been, with an address of its own.
    fn newcomer(&mut self) -> Document {
        let writer = self.history.writer();
        let mut document = named(DOCUMENTS + i32::try_from(writer).unwrap());
        document.extend(doc! { "email": format!("{writer}@newcomer"), "writer": writer });
        if self.random.random_ratio(1, 3) {
            document.insert("phone", self.phones.choose(writer, &mut self.random));
        }
        document
    }

    fn id(&mut self) -> i32 {
        self.random.random_range(0..DOCUMENTS)
    }

    fn email(&mut self) -> String {
        format!("{}@x", self.random.random_range(0..EMAILS))
    }

    fn tags(&mut self) -> Vec<i32> {
        let count = self.random.random_range(1..3);
        (0..count).map(|_| self.random.random_range(0..TAGS)).collect()
    }

    fn document(&mut self, id: i32, writer: i64) -> Document {
        let mut document = named(id);
        document.extend(doc! { "email": self.email(), "count": 0, "writer": writer });
        if self.random.random() {
            document.insert("tags", self.tags());
        }
        if self.random.random() {
            document.insert("phone", self.phones.choose(writer, &mut self.random));
        }
        document
    }

    async fn write(&mut self) -> (&'static str, Ended) {
        let (id, writer) = (self.id(), self.history.writer());
        let write = Kind::Write(writer);
        let accounts = self.accounts.clone();
        match self.random.random_range(0..23) {
            0..4 => {
                let insert = accounts.insert_one(self.document(id, writer)).await;
                ("insert", Ended::single(id, write, insert.map(|_| true)))
            }
            4 => ("insert many", self.insert_many().await),
            5..7 => {
                let set = doc! { "$set": { "email": self.email(), "writer": writer } };
                ("set", self.update(id, writer, set).await)
            }
            7 => {
                let set = doc! { "email": self.email(), "tags": self.tags(), "writer": writer };
                let update = doc! { "$set": set, "$inc": { "count": 1 } };
                ("set and inc", self.update(id, writer, update).await)
            }
            8 => {
                let set = doc! { "email": { "$concat": [self.email(), ""] }, "count": { "$add": ["$count", 1] },
                "writer": writer };
                let updated = accounts.update_one(named(id), vec![doc! { "$set": set }]).await;
                (
                    "pipeline",
                    Ended::single(id, write, updated.map(|done| done.matched_count > 0)),
                )
            }
            9 => {
                let update = doc! { "$addToSet": { "tags": self.tags()[0] }, "$set": { "writer": writer } };
                ("add a tag", self.update(id, writer, update).await)
            }
            10 => {
                let update = doc! { "$pull": { "tags": self.tags()[0] }, "$inc": { "count": 1 },
                "$set": { "writer": writer } };
                ("pull a tag", self.update(id, writer, update).await)
            }
            11 => {
                let update = doc! { "$unset": { "tags": 1 }, "$set": { "writer": writer } };
                ("unset", self.update(id, writer, update).await)
            }
            12 => {
                let replaced = accounts.replace_one(named(id), self.document(id, writer)).await;
                (
                    "replace",
                    Ended::single(id, write, replaced.map(|done| done.matched_count > 0)),
                )
            }
            13..15 => {
                let update = doc! { "$set": { "email": self.email(), "writer": writer }, "$inc": { "count": 1 } };
                let upserted = accounts.update_one(named(id), update).upsert(true).await;
                ("upsert", Ended::single(id, write, upserted.map(|_| true)))
            }
            15..17 => {
                let update = doc! { "$set": { "email": self.email(), "writer": writer }, "$inc": { "count": 1 } };
                let found = accounts.find_one_and_update(named(id), update).await;
                (
                    "findAndModify",
                    Ended::single(id, write, found.map(|found| found.is_some())),
                )
            }
            17 => {
                let found = accounts.find_one_and_delete(named(id)).await;
                let removed = found.as_ref().ok().and_then(|found| writer_of(found.as_ref()?));
                let kind = Kind::Delete(removed);
                (
                    "findAndModify that removes",
                    Ended::single(id, kind, found.map(|found| found.is_some())),
                )
            }
            18..20 => {
                let deleted = accounts.delete_one(named(id)).await;
                let kind = Kind::Delete(None);
                (
                    "delete",
                    Ended::single(id, kind, deleted.map(|done| done.deleted_count > 0)),
                )
            }
            20 => ("transaction: swap", self.transaction(Within::Swap, id).await),
            21 => {
                let phone = self.phones.choose(writer, &mut self.random);
                let set = doc! { "$set": { "phone": phone, "writer": writer } };
                ("set a phone", self.update(id, writer, set).await)
            }
            _ => ("transaction: move", self.transaction(Within::HandOver, id).await),
        }
    }

    async fn update(&self, id: i32, writer: i64, update: Document) -> Ended {
        let updated = self.accounts.update_one(named(id), update).await;
        Ended::single(id, Kind::Write(writer), updated.map(|done| done.matched_count > 0))
    }

    async fn insert_many(&mut self) -> Ended {
        let ids: Vec<i32> = (0..3).map(|_| self.id()).collect();
        let writers: Vec<i64> = ids.iter().map(|_| self.history.writer()).collect();
        let both = ids.iter().zip(&writers);
        let documents: Vec<Document> = both.map(|(id, writer)| self.document(*id, *writer)).collect();
        let ordered = self.random.random();
        let inserted = self.accounts.insert_many(documents).ordered(ordered).await;
        let mut verdicts = vec![Verdict::Applied; ids.len()];
        let mut duplicates = Vec::new();
        let mut outcome = Outcome::Ok;
        if let Err(error) = inserted {
            match &*error.kind {
                ErrorKind::InsertMany(many) if many.write_concern_error.is_none() => {
                    for refused in many.write_errors.iter().flatten() {
                        let judged = of_code(refused.code, &refused.message);
                        verdicts[refused.index] = judged.verdict;
                        if ordered {
                            verdicts[refused.index + 1..].fill(Verdict::Nothing);
                        }
                        let id = ids[refused.index];
                        duplicates.extend(judged.duplicate.map(|key| Duplicate { id, key }));
                        outcome = judged.outcome;
                    }
                }
                _ => {
                    let judged = judge(&error);
                    verdicts.fill(judged.verdict);
                    outcome = judged.outcome;
                }
            }
        }
        let statements = ids.into_iter().zip(writers).zip(verdicts);
        let statement = |((id, writer), verdict)| Statement {
            id,
            kind: Kind::Write(writer),
            verdict,
        };
        Ended {
            outcome,
            statements: statements.map(statement).collect(),
            duplicates,
        }
    }

    /// A transaction of the client's own: what is done in it is done with the commit, or not.
    async fn transaction(&mut self, within: Within, id: i32) -> Ended {
        let mut statements = Vec::new();
        let mut session = match self.accounts.client().start_session().await {
            Ok(session) => session,
            Err(error) => {
                return Ended {
                    outcome: judge(&error).outcome,
                    statements,
                    duplicates: Vec::new(),
                };
            }
        };
        session.start_transaction().await.unwrap();
        let done = match within {
            Within::Swap => self.swap(&mut session, id, &mut statements).await,
            Within::HandOver => self.hand_over(&mut session, id, &mut statements).await,
        };
        let (outcome, verdict, duplicates) = match done {
            Err(error) => {
                let _ = session.abort_transaction().await;
                let judged = judge(&error);
                let refused = statements.last().map_or(id, |statement| statement.id);
                let duplicates = judged.duplicate.map(|key| Duplicate { id: refused, key });
                let outcome = match judged.outcome {
                    Outcome::Unknown(why) => Outcome::Failed(format!("aborted: {why}")),
                    known => known,
                };
                // Nobody ever asks for its commit.
                (outcome, Verdict::Nothing, duplicates.into_iter().collect())
            }
            Ok(()) => match session.commit_transaction().await {
                Ok(()) => (Outcome::Ok, Verdict::Applied, Vec::new()),
                Err(error)
                    if error.contains_label(TRANSIENT_TRANSACTION_ERROR)
                        && !error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) =>
                {
                    (
                        Outcome::Failed("not committed".to_owned()),
                        Verdict::Nothing,
                        Vec::new(),
                    )
                }
                Err(error) => {
                    let why = match judge(&error).outcome {
                        Outcome::Unknown(why) | Outcome::Failed(why) => why,
                        other => format!("{other:?}"),
                    };
                    (Outcome::Unknown(format!("commit: {why}")), Verdict::Unknown, Vec::new())
                }
            },
        };
        statements.retain(|statement| statement.verdict == Verdict::Applied);
        statements.iter_mut().for_each(|statement| statement.verdict = verdict);
        Ended {
            outcome,
            statements,
            duplicates,
        }
    }

    async fn swap(
        &mut self,
        session: &mut ClientSession,
        one: i32,
        statements: &mut Vec<Statement>,
    ) -> Result<(), Error> {
        let other = (one + 1 + self.random.random_range(0..DOCUMENTS - 1)) % DOCUMENTS;
        let mut emails = Vec::new();
        for id in [one, other] {
            let Some(found) = self.accounts.find_one(named(id)).session(&mut *session).await? else {
                return Ok(());
            };
            emails.push(found.get("email").cloned().unwrap_or(Bson::Null));
        }
        let between = Bson::String(format!("between {one} and {other}"));
        for (id, email) in [(one, between), (other, emails.remove(0)), (one, emails.remove(0))] {
            let writer = self.history.writer();
            statements.push(Statement {
                id,
                kind: Kind::Write(writer),
                verdict: Verdict::Applied,
            });
            let update = doc! { "$set": { "email": email, "writer": writer }, "$inc": { "count": 1 } };
            self.accounts
                .update_one(named(id), update)
                .session(&mut *session)
                .await?;
        }
        Ok(())
    }

    async fn hand_over(
        &mut self,
        session: &mut ClientSession,
        from: i32,
        statements: &mut Vec<Statement>,
    ) -> Result<(), Error> {
        let to = (from + 1 + self.random.random_range(0..DOCUMENTS - 1)) % DOCUMENTS;
        let removed = self
            .accounts
            .find_one_and_delete(named(from))
            .session(&mut *session)
            .await?;
        let Some(removed) = removed else { return Ok(()) };
        statements.push(Statement {
            id: from,
            kind: Kind::Delete(writer_of(&removed)),
            verdict: Verdict::Applied,
        });
        let writer = self.history.writer();
        statements.push(Statement {
            id: to,
            kind: Kind::Write(writer),
            verdict: Verdict::Applied,
        });
        let mut document = removed;
        document.extend(named(to));
        document.insert("writer", writer);
        self.accounts.insert_one(document).session(&mut *session).await?;
        Ok(())
    }
}

fn writer_of(document: &Document) -> Option<i64> {
    document.get_i64("writer").ok()
}
