//! Remembers the clients of this Keyward that wait for the builds of their `createIndexes`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bson::Document;
use bson::oid::ObjectId;

/// The connection of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientAddress {
    /// Its number in this process, as in the log.
    pub connection: u64,
    /// Where the client is.
    pub peer: SocketAddr,
}

/// A client that waits for a build.
#[derive(Debug, Clone)]
pub struct WaitingClient {
    /// Its connection.
    pub address: ClientAddress,
    /// The users that it has logged in as.
    pub users: Vec<Document>,
    /// The body of its `createIndexes`.
    pub body: Document,
}

impl WaitingClient {
    /// Whether it has logged in as these users. Users that aren't known are other ones.
    pub fn is_of(&self, users: &[Document]) -> bool {
        !users.is_empty() && self.users == users
    }
}

/// The clients that wait, by the numbers of their commands.
#[derive(Debug, Default)]
pub struct WaitingClients(Mutex<HashMap<ObjectId, WaitingClient>>);

impl WaitingClients {
    /// Notes that `client` waits for its `command` until the result is dropped.
    pub fn wait(&self, command: ObjectId, client: WaitingClient) -> Waiting<'_> {
        self.clients().insert(command, client);
        Waiting { clients: self, command }
    }

    /// The client that waits for this command, if it waits here.
    pub fn of(&self, command: ObjectId) -> Option<WaitingClient> {
        self.clients().get(&command).cloned()
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<ObjectId, WaitingClient>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One client's wait.
#[derive(Debug)]
pub struct Waiting<'w> {
    clients: &'w WaitingClients,
    command: ObjectId,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.clients.clients().remove(&self.command);
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    #[test]
    fn a_client_waits_until_its_wait_is_dropped_and_belongs_to_known_users() {
        let client = |users: Vec<Document>| WaitingClient {
            address: ClientAddress {
                connection: 1,
                peer: "127.0.0.1:5".parse().unwrap(),
            },
            users,
            body: Document::new(),
        };
        let ann = vec![doc! { "user": "ann", "db": "admin" }];
        assert!(client(ann.clone()).is_of(&ann));
        assert!(!client(ann.clone()).is_of(&[doc! { "user": "ann", "db": "other" }]));
        assert!(!client(Vec::new()).is_of(&[]));
        let (clients, command) = (WaitingClients::default(), ObjectId::new());
        let waiting = clients.wait(command, client(ann.clone()));
        assert!(clients.of(command).is_some_and(|client| client.is_of(&ann)));
        drop(waiting);
        assert!(clients.of(command).is_none());
    }
}
