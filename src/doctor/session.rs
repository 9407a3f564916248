//! Sends commands in one session, with the fields of retryable writes and transactions set by hand: checks send what a driver
//! wouldn't.

use bson::{Document, doc};
use mongodb::ClientSession;
use mongodb::error::{Error, ErrorKind, TRANSIENT_TRANSACTION_ERROR};

use super::check::CheckError;
use super::scratch::Scratch;
use crate::server::driver;

/// An answer of the server's, whether it carried the command out or not.
#[derive(Debug)]
pub struct ScratchAnswer {
    /// The reply; empty if the command failed as a whole.
    pub reply: Document,
    /// The code of the command's error, or of its first write error.
    pub code: Option<i32>,
    /// Whether the error says that the transaction took no effect.
    pub is_transient: bool,
    text: String,
}

impl ScratchAnswer {
    fn read(answer: Result<Document, Error>) -> Result<ScratchAnswer, Error> {
        match answer {
            Ok(reply) => {
                let error = driver::first_write_error(&reply);
                let code = error.and_then(driver::error_code);
                let text = error.and_then(|error| error.get_str("errmsg").ok());
                Ok(ScratchAnswer {
                    code,
                    is_transient: false,
                    text: text.unwrap_or_default().to_owned(),
                    reply,
                })
            }
            Err(error) => match &*error.kind {
                ErrorKind::Command(refused) => Ok(ScratchAnswer {
                    reply: Document::new(),
                    code: Some(refused.code),
                    is_transient: error.contains_label(TRANSIENT_TRANSACTION_ERROR),
                    text: driver::in_words(&error),
                }),
                _ => Err(error),
            },
        }
    }

    pub fn is_ok(&self) -> bool {
        self.code.is_none()
    }

    /// The server's answer, for a line of the report.
    pub fn shown(&self) -> String {
        match (self.code, self.is_transient) {
            (None, _) => "ok".to_owned(),
            (Some(_), true) => format!("{} with {TRANSIENT_TRANSACTION_ERROR}", self.text),
            (Some(_), false) => self.text.clone(),
        }
    }
}

/// One session, and its transaction.
pub struct ScratchSession<'a> {
    scratch: &'a Scratch,
    session: ClientSession,
    /// The number of its transaction.
    number: i64,
}

impl<'a> ScratchSession<'a> {
    pub(super) fn of(scratch: &'a Scratch, session: ClientSession) -> ScratchSession<'a> {
        ScratchSession {
            scratch,
            session,
            number: 0,
        }
    }

    /// The driver's session.
    pub fn driver(&mut self) -> &mut ClientSession {
        &mut self.session
    }

    /// Sends a command unchanged, but for the session.
    pub async fn send(&mut self, database: &str, command: Document) -> Result<ScratchAnswer, CheckError> {
        let scratch = self.scratch;
        let database = scratch.client().database(database);
        let run = database.run_command(command);
        let run = match scratch.criteria() {
            Some(criteria) => run.selection_criteria(criteria),
            None => run,
        };
        let session = &mut self.session;
        let answer = async move { ScratchAnswer::read(run.session(session).await) };
        scratch.answered(answer).await
    }

    /// Sends a write under `number`, as a driver sends a retryable write, or its retry.
    pub async fn write(&mut self, mut command: Document, number: i64) -> Result<ScratchAnswer, CheckError> {
        command.extend(doc! { "txnNumber": number, "writeConcern": { "w": "majority" } });
        let name = self.scratch.name().to_owned();
        self.send(&name, command).await
    }

    /// Begins a transaction with its first command.
    pub async fn start(&mut self, mut command: Document, level: &str) -> Result<ScratchAnswer, CheckError> {
        self.number = self.scratch.next_number();
        command.extend(doc! { "startTransaction": true, "readConcern": { "level": level } });
        self.go_on(command).await
    }

    /// Sends a further command of the transaction.
    pub async fn go_on(&mut self, mut command: Document) -> Result<ScratchAnswer, CheckError> {
        command.extend(doc! { "txnNumber": self.number, "autocommit": false });
        let name = self.scratch.name().to_owned();
        self.send(&name, command).await
    }

    /// Commits the transaction, or sends its commit again.
    pub async fn commit(&mut self) -> Result<ScratchAnswer, CheckError> {
        self.end(doc! { "commitTransaction": 1 }).await
    }

    /// Commits a transaction that was never begun. A router gets the name of a `shard` that could know it.
    pub async fn commit_unknown(&mut self, shard: Option<&str>) -> Result<ScratchAnswer, CheckError> {
        self.number = self.scratch.next_number();
        let mut commit = doc! { "commitTransaction": 1 };
        if let Some(shard) = shard {
            commit.insert("recoveryToken", doc! { "recoveryShardId": shard });
        }
        self.end(commit).await
    }

    /// Aborts the transaction; the server may have done so before.
    pub async fn abort(&mut self) -> Result<ScratchAnswer, CheckError> {
        self.end(doc! { "abortTransaction": 1 }).await
    }

    async fn end(&mut self, mut command: Document) -> Result<ScratchAnswer, CheckError> {
        command.extend(doc! {
            "txnNumber": self.number, "autocommit": false, "writeConcern": { "w": "majority" },
        });
        self.send("admin", command).await
    }
}
