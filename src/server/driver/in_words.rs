//! States the meaning of a driver's error in one sentence, with the server's text and code and the way out.
//!
//! The driver's own text holds Rust's debug output: labels, nested errors, the server's whole reply and a dump of the topology.

use std::error::Error as _;

use bson::Document;
use mongodb::error::{CommandError, Error, ErrorKind, WriteFailure};

use super::super::code;

/// The meaning of `error`, for people.
pub fn in_words(error: &Error) -> String {
    match &*error.kind {
        ErrorKind::Command(refused) => of_command(refused),
        ErrorKind::Authentication { message, .. } => {
            let source = error.source().and_then(|source| source.downcast_ref::<Box<Error>>());
            let reason = source.map_or_else(|| plain(message), |source| in_words(source));
            format!(
                "Keyward can't log in: {reason}; check the user, the password and authSource in the connection string"
            )
        }
        ErrorKind::ServerSelection { message, .. } => match servers(message) {
            Some(servers) => {
                format!("no server of the deployment can be used: {servers}; does it run, and is upstream right?")
            }
            None => plain(message),
        },
        ErrorKind::Io(cause) => cause.to_string(),
        ErrorKind::Write(WriteFailure::WriteError(error)) => {
            coded(&error.message, error.code, error.code_name.as_deref())
        }
        ErrorKind::Write(WriteFailure::WriteConcernError(error)) => {
            coded(&error.message, error.code, Some(&error.code_name))
        }
        ErrorKind::InsertMany(error) => match (&error.write_errors, &error.write_concern_error) {
            (Some(errors), _) if !errors.is_empty() => {
                coded(&errors[0].message, errors[0].code, errors[0].code_name.as_deref())
            }
            (_, Some(error)) => coded(&error.message, error.code, Some(&error.code_name)),
            _ => "the server refused a document".to_owned(),
        },
        ErrorKind::BulkWrite(error) => match error.write_errors.values().next() {
            Some(error) => coded(&error.message, error.code, error.code_name.as_deref()),
            None => "the server refused a bulk write".to_owned(),
        },
        other => plain(&other.to_string()),
    }
}

fn of_command(refused: &CommandError) -> String {
    let text = coded(
        &without_command(&refused.message),
        refused.code,
        Some(&refused.code_name),
    );
    match refused.code {
        code::UNAUTHORIZED => format!("{text}; docs/security.md lists the privileges of Keyward's user"),
        _ => text,
    }
}

/// Where the user lacks a privilege, the server repeats the whole command, with its values.
fn without_command(message: &str) -> String {
    match message.split_once(" to execute command { ") {
        Some((lacking, command)) => {
            let name = command.split(':').next().unwrap_or_default();
            format!("{lacking} to execute {name}")
        }
        None => message.to_owned(),
    }
}

fn coded(message: &str, code: i32, name: Option<&str>) -> String {
    match name.filter(|name| !name.is_empty()) {
        Some(name) => format!("{message} (code {code}, {name})"),
        None => format!("{message} (code {code})"),
    }
}

/// The meaning of an entry of `writeErrors`, for people.
pub fn write_error_in_words(error: &Document) -> String {
    let message = error.get_str("errmsg").unwrap_or("no text");
    coded(
        message,
        error.get_i32("code").unwrap_or_default(),
        error.get_str("codeName").ok(),
    )
}

/// `text` without the debug output of the error that it quotes, if it quotes one.
fn plain(text: &str) -> String {
    let text = text.split_once(" Topology: ").map_or(text, |(text, _)| text);
    let text = text.split_once(", labels: {").map_or(text, |(text, _)| text);
    text.replace("Kind: ", "").replace("I/O error: ", "")
}

/// The servers that the driver knows, and why it can't use them, from its dump of the topology.
fn servers(message: &str) -> Option<String> {
    let (_, topology) = message.split_once(" Topology: ")?;
    let of_server = |server: &str| {
        let (address, rest) = server.split_once(", Type: ")?;
        let kind = rest.split([',', ' ']).next()?;
        Some(match rest.split_once("Error: Kind: ") {
            Some((_, error)) => format!("{address}: {}", plain(error)),
            None if kind == "Unknown" => format!("{address}: it has not answered yet"),
            None => format!("{address}: it is not the primary"),
        })
    };
    let servers: Vec<String> = topology.split("{ Address: ").skip(1).filter_map(of_server).collect();
    (!servers.is_empty()).then(|| servers.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_of_the_topology_becomes_a_list_of_servers() {
        let dump = "Server selection timeout: No available servers. Topology: { Type: ReplicaSetNoPrimary, Set Name: rs0, Servers: [ \
                    { Address: a:1, Type: Unknown, Error: Kind: I/O error: Connection refused (os error 111), labels: {}, source: \
                    None, server response: None }, { Address: b:2, Type: RsSecondary, Average RTT: 1ms }, { Address: c:3, Type: \
                    Unknown } ] }";
        assert_eq!(
            servers(dump).unwrap(),
            "a:1: Connection refused (os error 111); b:2: it is not the primary; c:3: it has not answered yet"
        );
        assert_eq!(servers("Server selection timeout: No available servers."), None);
    }

    #[test]
    fn quoted_errors_lose_their_debug_output() {
        let cleared = "Connection pool for a:1 cleared because another operation failed with: Kind: I/O error: broken pipe, labels: \
                       {\"RetryableWriteError\"}, source: None, server response: None";
        assert_eq!(
            plain(cleared),
            "Connection pool for a:1 cleared because another operation failed with: broken pipe"
        );
    }

    #[test]
    fn a_refused_connection_is_named_without_debug_output() {
        let error = Error::from(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
        assert_eq!(in_words(&error), "connection refused");
    }

    #[test]
    fn a_command_is_not_repeated_where_a_privilege_is_missing() {
        let message =
            "not authorized on shop to execute command { insert: \"users\", documents: [ { email: \"a\" } ] }";
        assert_eq!(
            coded(&without_command(message), code::UNAUTHORIZED, Some("Unauthorized")),
            "not authorized on shop to execute insert (code 13, Unauthorized)"
        );
    }
}
