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
        ErrorKind::ConnectionPoolCleared { message, .. } => of_pool(message),
        ErrorKind::DnsResolve { message, .. } => of_lookup(message),
        other => plain(&other.to_string()),
    }
}

/// The meaning of an error about a pool of connections: the driver closes them all if one of them fails.
fn of_pool(message: &str) -> String {
    let text = plain(message);
    let parts = text.strip_prefix("Connection pool for ");
    match parts.and_then(|rest| rest.split_once(" cleared because another operation failed with: ")) {
        Some((server, reason)) => {
            format!("the connections to {server} were closed, because one of them failed: {reason}")
        }
        None => text,
    }
}

/// The meaning of a failed look-up of the deployment's name. The driver's resolver shows its query as Rust's debug output.
fn of_lookup(message: &str) -> String {
    let query = message.split_once("no records found for Query { name: Name(\"");
    let query = query.and_then(|(_, query)| query.split_once("\"), query_type: "));
    match query {
        Some((name, rest)) => {
            let name = name.trim_end_matches('.');
            let kind = rest.split([',', ' ']).next().unwrap_or_default();
            format!("the name server has no {kind} record of {name}; is the host name in upstream right?")
        }
        None => {
            let text = message.split_once(" {").map_or(message, |(text, _)| text);
            format!(
                "the deployment's name can't be looked up: {text}; does the name server answer, and is upstream right?"
            )
        }
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
            of_pool(cleared),
            "the connections to a:1 were closed, because one of them failed: broken pipe"
        );
        assert_eq!(of_pool("another text"), "another text");
    }

    #[test]
    fn a_name_that_cannot_be_looked_up_is_named_without_debug_output() {
        let query = "DNS error: no records found for Query { name: Name(\"_mongodb._tcp.h.\"), query_type: SRV, query_class: IN }";
        assert_eq!(
            of_lookup(query),
            "the name server has no SRV record of _mongodb._tcp.h; is the host name in upstream right?"
        );
        assert_eq!(
            of_lookup("request timed out"),
            "the deployment's name can't be looked up: request timed out; does the name server answer, and is upstream right?"
        );
        assert!(!of_lookup("no reply to Query { name: Name(\"h.\") }").contains(['{', '(']));
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
