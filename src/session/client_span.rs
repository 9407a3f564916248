//! Names the client of a connection in each line of the log about it: its address, and what it states of itself.
//!
//! The names are fields of a `tracing` span. Only futures that may log run in it: a forwarded message doesn't enter it.

use std::net::SocketAddr;

use bson::spec::ElementType;
use tracing::field::Empty;
use tracing::instrument::Instrumented;
use tracing::{Instrument, Span, error_span};

use super::request_context::RequestContext;
use crate::indexes::ClientAddress;
use crate::raw::Doc;
use crate::wire::{Message, Request};

/// The most characters of a text from the client in a line of the log.
const TEXT_CHARS_MAX: usize = 128;

/// The most changes of a connection's statements that its lines show. The span keeps each of them for as long as the connection is open.
const CHANGES_MAX: u32 = 30;

/// The span of one client's connection; clones are the same one.
#[derive(Debug, Clone)]
pub struct ClientSpan {
    span: Span,
    /// The client's connection.
    pub(super) address: ClientAddress,
    shown: Box<ShownStatements>,
}

/// The statements that the span shows already.
#[derive(Debug, Clone, Default)]
struct ShownStatements {
    stated: Stated,
    /// How often a statement has changed.
    changes: u32,
}

impl ClientSpan {
    /// The span of connection `id`, whose client is at `peer`. It is of the highest level, so that it names the client in all lines.
    pub fn of(id: u64, peer: SocketAddr) -> ClientSpan {
        ClientSpan {
            span: error_span!(parent: None, "connection", id, %peer, app = Empty, driver = Empty, user = Empty),
            address: ClientAddress { connection: id, peer },
            shown: Box::default(),
        }
    }

    /// Runs `future`, and names the client in its lines of the log.
    pub(super) fn around<F: Future>(&self, future: F) -> Instrumented<F> {
        future.instrument(self.span.clone())
    }

    /// Names the client in the lines that `log` writes.
    pub fn log(&self, log: impl FnOnce()) {
        self.span.in_scope(log);
    }

    /// Notes what `request` states of the client, if it is a handshake or a login.
    #[inline]
    pub(super) fn note(&mut self, request: &Request<'_>, context: &RequestContext) {
        if context.may_change_user && !self.span.is_disabled() {
            self.note_stated(request);
        }
    }

    fn note_stated(&mut self, request: &Request<'_>) {
        let body = match &request.parsed {
            Ok(Message::Msg(message)) => message.body,
            Ok(Message::Query(query)) => query.command,
            Err(_) => return,
        };
        let stated = Stated::by(body).unwrap_or_default();
        let ShownStatements {
            stated: before,
            changes,
        } = &mut *self.shown;
        for (field, text, shown) in [
            ("app", stated.app, &mut before.app),
            ("driver", stated.driver, &mut before.driver),
            ("user", stated.user, &mut before.user),
        ] {
            if text.is_some() && text != *shown && *changes < CHANGES_MAX {
                *changes += 1;
                // A text is written in quotes, with its control characters escaped.
                self.span.record(field, text.as_deref());
                *shown = text;
            }
        }
    }
}

/// The statements of a client about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Stated {
    app: Option<String>,
    driver: Option<String>,
    user: Option<String>,
}

impl Stated {
    fn by(body: Doc<'_>) -> Option<Stated> {
        let text = |path: &str| {
            let element = body.value_at(path).ok()??;
            element.as_str().map(shortened)
        };
        let driver = match (text("client.driver.name"), text("client.driver.version")) {
            (Some(name), Some(version)) => Some(format!("{name} {version}")),
            (name, _) => name,
        };
        let login = body.nested("speculativeAuthenticate").ok()?.unwrap_or(body);
        Some(Stated {
            app: text("client.application.name"),
            driver,
            user: user(login),
        })
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

/// The user whose login by SCRAM `command` begins; the payload is `n,,n=<user>,r=<nonce>`.
fn user(command: Doc<'_>) -> Option<String> {
    let mechanism = command.get("mechanism").ok()??;
    if !mechanism.as_str()?.starts_with("SCRAM-") {
        return None;
    }
    let payload = command.get("payload").ok()??;
    let payload = match payload.kind {
        // Length and subtype come first.
        ElementType::Binary => payload.value.get(5..)?,
        _ => payload.as_string_bytes()?,
    };
    let (_, names) = std::str::from_utf8(payload).ok()?.split_once(",,n=")?;
    let (name, _) = names.split_once(',')?;
    Some(shortened(&name.replace("=2C", ",").replace("=3D", "=")))
}

#[cfg(test)]
mod tests {
    use bson::{Binary, Document, doc, spec::BinarySubtype};

    use super::*;

    fn stated(command: &Document) -> Stated {
        Stated::by(Doc::new(&command.to_vec().unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn a_handshake_names_application_driver_and_user() {
        let payload = Binary {
            subtype: BinarySubtype::Generic,
            bytes: b"n,,n=ann=2C=3Db,r=n0nce".to_vec(),
        };
        let client = doc! { "application": { "name": "shop" }, "driver": { "name": "PyMongo", "version": "4.6" } };
        let hello = doc! {
            "hello": 1, "client": client,
            "speculativeAuthenticate": { "saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": payload },
        };
        let expected = Stated {
            app: Some("shop".to_owned()),
            driver: Some("PyMongo 4.6".to_owned()),
            user: Some("ann,=b".to_owned()),
        };
        assert_eq!(stated(&hello), expected);
    }

    #[test]
    fn a_password_is_never_read() {
        let plain = doc! { "saslStart": 1, "mechanism": "PLAIN", "payload": "\0ann\0s3cret" };
        let last = doc! { "saslContinue": 1, "payload": "c=biws,r=n0nce,p=pr00f" };
        let odd = doc! { "saslStart": 1, "mechanism": "SCRAM-SHA-1", "payload": 7 };
        for command in [plain, last, odd, doc! { "hello": 1, "client": "x" }] {
            assert_eq!(stated(&command), Stated::default(), "{command}");
        }
    }
}
