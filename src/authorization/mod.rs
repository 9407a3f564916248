//! Establishes a client's privileges to write, on its own connection, before Keyward's own user acts for it.
//!
//! Keyward makes a reservation with its own privileges, and sees with them whether a key is taken. So no write gets that far
//! before the server has confirmed that the client may do it. Keyward keeps the server's answer for as long as a `mongos`
//! keeps it, and forgets it when the client logs in or out. Where a privilege seems to be missing, Keyward asks the server
//! again, and the client gets the server's own refusal.

mod harmless;
mod needs;
mod privileges;

use std::time::Duration;

use bson::Document;
use tokio::time::Instant;

use crate::classify::Write;
use crate::command::running::append_fields;
use crate::namespace::Namespace;
use crate::raw::{Builder, Doc, Malformed};
use crate::server::{self, code};
use crate::upstream::{self, Connection, Reply};
use crate::wire::{Draft, OpMsg};
use crate::write::ForwardError;

pub use needs::Actions;

use needs::Need;
use privileges::Privileges;

/// How long what the server said holds: as long as a `mongos` keeps users' rights (`userCacheInvalidationIntervalSecs`).
const KEPT: Duration = Duration::from_secs(30);
/// Fields that Keyward copies from the client's command to its own. `apiStrict` isn't one: the stable API has no `connectionStatus`.
const API: [&str; 2] = ["apiVersion", "apiDeprecationErrors"];

/// Why Keyward can't determine a client's rights. Nothing was done. The connection must be closed; a driver that connects anew may try
/// again.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message names each field")]
pub enum RightsError {
    /// The connection can't be used any more.
    #[error(transparent)]
    Upstream(#[from] upstream::ConnectionError),
    /// The server doesn't answer the question.
    #[error("the server answers {command} with an error: {reason}")]
    Unanswered { command: &'static str, reason: String },
    /// A reply, or the client's message, isn't BSON.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// The privileges to write of a connection's user, as far as they are known.
#[derive(Debug)]
pub struct Rights(KnownRights);

#[derive(Debug)]
enum KnownRights {
    Nothing,
    /// The server has no access control, so every client may do everything. That can't change while the server runs, and the
    /// connection ends no later than the server.
    NoAccessControl,
    Privileges {
        privileges: Privileges,
        asked: Instant,
    },
}

/// The decision about a write.
#[derive(Debug)]
pub enum Ruling {
    /// The client may do it.
    MayWrite,
    /// The server refuses it with this reply.
    Refused(Vec<u8>),
}

impl Rights {
    /// Nothing is known yet.
    pub fn unknown() -> Self {
        Rights(KnownRights::Nothing)
    }

    /// Keyward doesn't log in: every client may do what Keyward may do.
    pub fn no_less_than_keywards() -> Self {
        Rights(KnownRights::NoAccessControl)
    }

    /// The server's present answer about them; unknown ones if the server refuses to answer. `has_users` is whether Keyward logs in.
    ///
    /// # Errors
    /// The connection's, or that of a reply that isn't BSON.
    pub async fn if_known(has_users: bool, body: Doc<'_>, upstream: &mut Connection) -> Result<Self, ForwardError> {
        if !has_users {
            return Ok(Rights::no_less_than_keywards());
        }
        match ask(body, upstream).await {
            Ok(known) => Ok(Rights(known)),
            Err(RightsError::Unanswered { .. }) => Ok(Rights::unknown()),
            Err(RightsError::Upstream(error)) => Err(error.into()),
            Err(RightsError::Malformed(malformed)) => Err(malformed.into()),
        }
    }

    /// Whether they seem to be enough for these actions on the collection. The server has the last word.
    pub fn may(&self, actions: Actions, database: &[u8], collection: &[u8]) -> bool {
        let need = Need {
            database,
            collection,
            actions,
        };
        self.missing(&[need]).is_none()
    }

    /// The connection may belong to another user from now on.
    pub fn forget(&mut self) {
        if let KnownRights::Privileges { .. } = self.0 {
            self.0 = KnownRights::Nothing;
        }
    }

    /// Says whether the client may do the write; asks the server at most once in a while.
    pub async fn rule(
        &mut self,
        write: &Write<'_>,
        message: &OpMsg<'_>,
        upstream: &mut Connection,
    ) -> Result<Ruling, RightsError> {
        if let KnownRights::NoAccessControl = self.0 {
            return Ok(Ruling::MayWrite);
        }
        let needs = Need::of(write, message)?;
        if self.missing(&needs).is_none() {
            return Ok(Ruling::MayWrite);
        }
        self.0 = ask(message.body, upstream).await?;
        // Each once, however long that takes.
        for need in &needs {
            let is_covered = match &self.0 {
                KnownRights::NoAccessControl => true,
                KnownRights::Privileges { privileges, .. } => privileges.cover(need),
                KnownRights::Nothing => false,
            };
            if is_covered {
                continue;
            }
            let reply = harmless::send(write, message, need, upstream).await?;
            if !is_allowed(&reply)? {
                return Ok(Ruling::Refused(reply.body().bytes().to_vec()));
            }
            // Keyward's reading of the privileges may differ from the server's: the server decides.
            if let KnownRights::Privileges { privileges, .. } = &mut self.0 {
                privileges.add(need);
            }
        }
        Ok(Ruling::MayWrite)
    }

    /// Whether the client may change any documents, as far as the server says. It may if the server doesn't say.
    pub async fn may_write_somewhere(&mut self, body: Doc<'_>, upstream: &mut Connection) -> Result<bool, RightsError> {
        match ask(body, upstream).await {
            Ok(known) => self.0 = known,
            Err(RightsError::Unanswered { .. }) => return Ok(true),
            Err(error) => return Err(error),
        }
        Ok(!matches!(&self.0, KnownRights::Privileges { privileges, .. } if privileges.are_none()))
    }

    /// Whether the client may read documents of `namespace`, as far as the server has said lately. If the server doesn't say,
    /// the client may not.
    pub async fn may_find(
        &mut self,
        namespace: &Namespace,
        body: Doc<'_>,
        upstream: &mut Connection,
    ) -> Result<bool, RightsError> {
        let is_known = match &self.0 {
            KnownRights::NoAccessControl => return Ok(true),
            KnownRights::Privileges { asked, .. } => asked.elapsed() < KEPT,
            KnownRights::Nothing => false,
        };
        if !is_known {
            match ask(body, upstream).await {
                Ok(known) => self.0 = known,
                Err(RightsError::Unanswered { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        let need = Need {
            database: namespace.database.as_bytes(),
            collection: namespace.collection.as_bytes(),
            actions: Actions::FIND,
        };
        Ok(self.missing(&[need]).is_none())
    }

    /// The first of `needs` that isn't known to be there.
    fn missing<'n, 'a>(&self, needs: &'n [Need<'a>]) -> Option<&'n Need<'a>> {
        match &self.0 {
            KnownRights::NoAccessControl => None,
            KnownRights::Privileges { privileges, asked } if asked.elapsed() < KEPT => {
                needs.iter().find(|need| !privileges.cover(need))
            }
            KnownRights::Nothing | KnownRights::Privileges { .. } => needs.first(),
        }
    }
}

/// The users that the client has logged in as, as the server lists them; none if the server has no users, or doesn't say. `has_users` is
/// whether Keyward logs in.
///
/// # Errors
/// The connection's, or that of a reply that isn't BSON.
pub async fn logged_in_users(
    has_users: bool,
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Vec<Document>, ForwardError> {
    if !has_users {
        return Ok(Vec::new());
    }
    Rights::if_known(has_users, body, upstream).await?;
    let listed = Doc::new(upstream.users())?.nested("authenticatedUsers")?;
    let listed = listed.into_iter().flat_map(Doc::elements);
    listed
        .filter_map(|user| user.map(|user| user.to_document()).transpose())
        .collect::<Result<_, _>>()
        .map_err(Into::into)
}

/// Asks the server, which a `mongos` answers without its shards.
async fn ask(body: Doc<'_>, upstream: &mut Connection) -> Result<KnownRights, RightsError> {
    let mut status = Builder::new();
    status.int32("connectionStatus", 1).boolean("showPrivileges", true);
    let reply = run(status, "connectionStatus", body, upstream).await?;
    if let Some(reason) = refusal(&reply)? {
        return Err(unanswered("connectionStatus", reason));
    }
    let info = reply.body().nested("authInfo")?.unwrap_or(Doc::empty());
    let mut users = Builder::new();
    append_fields(&mut users, info, &["authenticatedUsers", "authenticatedUserRoles"])?;
    upstream.belong_to(users.finish());
    let privileges = Privileges::read(info)?;
    if info.nested("authenticatedUsers")?.is_none_or(Doc::is_empty) {
        // The client hasn't logged in, or its login has expired. A server without access control answers this command; any other
        // one refuses it.
        let mut refresh = Builder::new();
        refresh.documents("refreshSessions", std::iter::empty::<Vec<u8>>());
        let reply = run(refresh, "refreshSessions", body, upstream).await?;
        match (refusal(&reply)?, server::reply::code(reply.body())?) {
            (None, _) => return Ok(KnownRights::NoAccessControl),
            (Some(_), Some(code::UNAUTHORIZED | code::REAUTHENTICATION_REQUIRED)) => {}
            (Some(reason), _) => return Err(unanswered("refreshSessions", reason)),
        }
    }
    Ok(KnownRights::Privileges {
        privileges,
        asked: Instant::now(),
    })
}

async fn run(
    mut command: Builder,
    name: &'static str,
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Reply, RightsError> {
    tracing::trace!(command = name, "asking for a client's rights");
    append_fields(&mut command, body, &API)?;
    command.string("$db", b"admin");
    let command = command.finish();
    Ok(upstream.request(&Draft::of_body(&command)).await?)
}

/// Whether the server accepted the harmless form of a command. The client's own command gets any other error, too.
fn is_allowed(reply: &Reply) -> Result<bool, Malformed> {
    Ok(refusal(reply)?.is_none()
        || server::reply::code(reply.body())?.is_some_and(|code| harmless::OF_WHO_MAY.contains(&code)))
}

/// The server's error, if the reply isn't `ok`.
fn refusal(reply: &Reply) -> Result<Option<String>, Malformed> {
    if server::reply::is_ok(reply.body())? {
        return Ok(None);
    }
    let text = server::reply::errmsg(reply.body())?.unwrap_or_default();
    Ok(Some(String::from_utf8_lossy(text).into_owned()))
}

fn unanswered(command: &'static str, reason: String) -> RightsError {
    RightsError::Unanswered { command, reason }
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};
    use mongodb::options::ServerAddress;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::classify::Target;
    use crate::stream::split;
    use crate::wire::{Header, MESSAGE_BYTES_MAX};

    /// Answers each command on `socket` as a server does after the client's login has expired.
    async fn serve_expired(mut socket: TcpStream) {
        let mut header = [0; Header::SIZE];
        for reply_id in 1.. {
            if socket.read_exact(&mut header).await.is_err() {
                return;
            }
            let Header { length, request_id, .. } = Header::read(&header).unwrap().unwrap();
            assert!(length < MESSAGE_BYTES_MAX);
            let mut message = header.to_vec();
            message.resize(length, 0);
            socket.read_exact(&mut message[Header::SIZE..]).await.unwrap();
            let is_open_to_all = OpMsg::parse(&message)
                .unwrap()
                .body
                .get("connectionStatus")
                .unwrap()
                .is_some();
            let reply: Document = match is_open_to_all {
                true => doc! { "authInfo": { "authenticatedUsers": [], "authenticatedUserPrivileges": [] }, "ok": 1 },
                false => doc! { "ok": 0, "errmsg": "expired", "code": code::REAUTHENTICATION_REQUIRED },
            };
            let reply = reply.to_vec().unwrap();
            let frame = Draft::of_body(&reply).frame(reply_id, request_id).unwrap();
            socket.write_all(&frame.to_vec()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_client_whose_login_has_expired_gets_the_servers_refusal() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        tokio::spawn(serve_expired(server));
        let (host, port) = ("localhost".to_owned(), None);
        let mut upstream = Connection::new(split(socket).unwrap(), ServerAddress::Tcp { host, port });
        let body = doc! { "insert": "users", "documents": [{}], "$db": "shop" }
            .to_vec()
            .unwrap();
        let message = Draft::of_body(&body).frame(1, 0).unwrap().to_vec();
        let write = Write::Insert(Target {
            database: b"shop",
            collection: b"users",
        });
        let message = OpMsg::parse(&message).unwrap();
        let ruling = Rights::unknown().rule(&write, &message, &mut upstream).await.unwrap();
        let Ruling::Refused(reply) = ruling else {
            panic!("the client may write");
        };
        let refused = server::reply::code(Doc::new(&reply).unwrap()).unwrap();
        assert_eq!(refused, Some(code::REAUTHENTICATION_REQUIRED));
    }
}
