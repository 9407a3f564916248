//! `failCommand`: the fail point with which drivers' tests make commands fail. It is the router's own, as on `mongos`: shards
//! don't hear of it.
//!
//! An error, a closed connection or a delay comes before the command is run, and before it can touch a transaction. A write
//! concern error is added to the reply of a command that was run.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bson::{Bson, Document, doc};
use tokio::time::{Instant, sleep_until};

use super::command::Command;
use super::ddl::decode;
use super::error::{Failure, ServerError, code, refuse};
use super::raw::{Builder, Doc};
use super::reply::{self, encode};

/// The name of the fail point, the only one of the router.
const NAME: &str = "failCommand";
/// What the server says of a mode that it doesn't know.
const MODES: &str = "'mode' must be one of 'off', 'alwaysOn', '{times:n}', '{skip:n}' or '{activationProbability:p}'";
/// Commands that take a write concern, besides pipelines that write.
const WITH_WRITE_CONCERN: [&str; 17] = [
    "insert",
    "update",
    "delete",
    "findAndModify",
    "commitTransaction",
    "abortTransaction",
    "create",
    "createIndexes",
    "drop",
    "dropDatabase",
    "dropIndexes",
    "collMod",
    "renameCollection",
    "enableSharding",
    "createUser",
    "updateUser",
    "dropUser",
];

/// The fail point's state.
#[derive(Debug, Default)]
pub struct FailCommand(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    mode: Mode,
    data: Document,
    /// How often it has made a command fail.
    count: i64,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Mode {
    #[default]
    Off,
    AlwaysOn,
    /// On for so many commands more.
    Times(i64),
    /// On after so many commands more.
    Skip(i64),
}

/// How a command fails before it is run.
#[derive(Debug, PartialEq)]
pub struct Injected {
    /// The connection is closed without a reply.
    pub closes_connection: bool,
    /// The command waits for so long first.
    delay: Option<Duration>,
    /// The error's code, if there is one.
    error: Option<i32>,
    /// Labels in place of those that the error would have.
    labels: Option<Vec<String>>,
}

impl FailCommand {
    /// `configureFailPoint`.
    ///
    /// # Errors
    /// For another fail point, and for a mode that there isn't.
    pub fn configure(&self, command: &Command) -> Result<Vec<u8>, Failure> {
        if command.db != "admin" {
            let message = "configureFailPoint may only be run against the admin database.";
            return refuse(code::UNAUTHORIZED, message);
        }
        let name = command.text("configureFailPoint").unwrap_or_default();
        if name != NAME {
            return refuse(code::FAIL_POINT_SET_FAILED, format!("{name} not found"));
        }
        let body = decode(command.doc());
        let mode = mode(body.get("mode"))?;
        let data = body.get_document("data").cloned().unwrap_or_default();
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = state.count;
        *state = State { mode, data, count };
        Ok(reply::from_document(doc! { "count": count }))
    }

    /// How `command` of the application `app_name` must fail before it is run, if it must.
    pub fn before(&self, command: &Command, app_name: &str) -> Option<Injected> {
        self.strike(command, app_name, |data| {
            let injected = Injected {
                closes_connection: data.get_bool("closeConnection").unwrap_or(false),
                delay: delay(data),
                error: data.get("errorCode").and_then(whole_number).map(|code| code as i32),
                labels: labels(data),
            };
            let fails = injected.closes_connection || injected.delay.is_some() || injected.error.is_some();
            fails.then_some(injected)
        })
    }

    /// `body`, the reply to `command`, with the write concern error that it must report, if it must.
    pub fn after(&self, command: &Command, app_name: &str, body: Vec<u8>) -> Vec<u8> {
        let is_ok = Doc::new(&body).is_ok_and(|body| matches!(body.get("ok"), Ok(Some(ok)) if ok.is_truthy()));
        if !is_ok || !takes_write_concern(command) {
            return body;
        }
        let added = self.strike(command, app_name, |data| {
            let mut added = doc! { "writeConcernError": data.get_document("writeConcernError").ok()? };
            if let Some(labels) = labels(data).filter(|labels| !labels.is_empty()) {
                added.insert("errorLabels", labels);
            }
            Some(added)
        });
        let Some(added) = added else { return body };
        let mut reply = Builder::from_document(&body);
        for element in Doc::new(&encode(&added))
            .iter()
            .flat_map(|added| added.elements())
            .flatten()
        {
            reply.element(&element);
        }
        reply.finish()
    }

    /// What `effect` makes of the fail point's data, if it is on for `command`. Only then it counts.
    fn strike<T>(&self, command: &Command, app_name: &str, effect: impl Fn(&Document) -> Option<T>) -> Option<T> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.mode == Mode::Off || !is_meant(&state.data, command, app_name) {
            return None;
        }
        let effect = effect(&state.data)?;
        let (is_on, mode) = match state.mode {
            Mode::Off => (false, Mode::Off),
            Mode::AlwaysOn => (true, Mode::AlwaysOn),
            Mode::Times(times) => (true, if times > 1 { Mode::Times(times - 1) } else { Mode::Off }),
            Mode::Skip(0) => (true, Mode::Skip(0)),
            Mode::Skip(times) => (false, Mode::Skip(times - 1)),
        };
        state.mode = mode;
        state.count += i64::from(is_on);
        is_on.then_some(effect)
    }
}

impl Injected {
    /// Waits for the delay, which the command's time limit ends, and gives the error if there is one.
    pub async fn wait(&self, deadline: Option<Instant>) -> Option<ServerError> {
        if let Some(delay) = self.delay {
            let end = Instant::now() + delay;
            sleep_until(deadline.map_or(end, |deadline| deadline.min(end))).await;
            if deadline.is_some_and(|deadline| deadline < end) {
                return Some(ServerError::new(
                    code::MAX_TIME_MS_EXPIRED,
                    "operation exceeded time limit",
                ));
            }
        }
        let message = "Failing command via 'failCommand' failpoint";
        self.error.map(|code| ServerError::new(code, message))
    }

    /// Its labels, else those that the error has by itself.
    pub fn labels_or<'a>(&'a self, own: Vec<&'a str>) -> Vec<&'a str> {
        match &self.labels {
            Some(labels) => labels.iter().map(String::as_str).collect(),
            None => own,
        }
    }
}

fn mode(mode: Option<&Bson>) -> Result<Mode, Failure> {
    match mode {
        Some(Bson::String(name)) => match name.as_str() {
            "off" => Ok(Mode::Off),
            "alwaysOn" => Ok(Mode::AlwaysOn),
            other => refuse(code::BAD_VALUE, format!("unknown mode: {other}")),
        },
        Some(Bson::Document(mode)) => match (counted(mode, "times"), counted(mode, "skip")) {
            (Some(times), _) if times > 0 => Ok(Mode::Times(times)),
            (Some(0), _) => Ok(Mode::Off),
            (Some(_), _) => refuse(code::BAD_VALUE, "'times' option to 'mode' must be positive"),
            (None, Some(skip)) if skip >= 0 => Ok(Mode::Skip(skip)),
            (None, Some(_)) => refuse(code::BAD_VALUE, "'skip' option to 'mode' must be positive"),
            (None, None) => refuse(code::BAD_VALUE, MODES),
        },
        _ => refuse(code::TYPE_MISMATCH, "'mode' must be a string or JSON object"),
    }
}

fn counted(mode: &Document, name: &str) -> Option<i64> {
    mode.get(name).and_then(whole_number)
}

/// Whether the fail point is about this command; it is never about its own.
fn is_meant(data: &Document, command: &Command, app_name: &str) -> bool {
    let is_other = |field: &str, is: &str| data.get_str(field).is_ok_and(|asked| asked != is);
    if command.name == "configureFailPoint" || is_other("appName", app_name) {
        return false;
    }
    if data.contains_key("namespace") && is_other("namespace", &command.namespace().unwrap_or_default()) {
        return false;
    }
    let name = first_name(&command.name);
    let names = data.get_array("failCommands").into_iter().flatten();
    data.get_bool("failAllCommands").unwrap_or(false)
        || names.filter_map(Bson::as_str).any(|other| first_name(other) == name)
}

/// The name of a command that goes by two.
fn first_name(name: &str) -> &str {
    match name {
        "ismaster" => "isMaster",
        "findandmodify" => "findAndModify",
        "buildinfo" => "buildInfo",
        "deleteIndexes" => "dropIndexes",
        other => other,
    }
}

fn takes_write_concern(command: &Command) -> bool {
    WITH_WRITE_CONCERN.contains(&first_name(&command.name)) || command.writes_by_pipeline()
}

fn delay(data: &Document) -> Option<Duration> {
    let blocks = data.get_bool("blockConnection").unwrap_or(false);
    let time = data.get("blockTimeMS").and_then(whole_number);
    time.filter(|_| blocks)
        .map(|time| Duration::from_millis(time.unsigned_abs()))
}

fn labels(data: &Document) -> Option<Vec<String>> {
    let labels = data.get_array("errorLabels").ok()?;
    Some(labels.iter().filter_map(Bson::as_str).map(ToOwned::to_owned).collect())
}

fn whole_number(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Int64(number) => Some(*number),
        Bson::Double(number) => Some(*number as i64),
        _ => None,
    }
}
