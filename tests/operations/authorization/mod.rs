//! A deployment with users: what a client may not write it can't reserve, nor learn of; and Keyward's own user needs no
//! more than the role in `docs/security.md`.

mod clients;
mod keywards_user;

use bson::{Bson, Document, doc};
use mongodb::Client;
use mongodb::error::ErrorKind;
use mongodb::options::{ClientOptions, Credential, ServerAddress};
use std::path::Path;
use std::sync::OnceLock;
use testbed::ReplicaSet;
use testkit::Keyward;

/// A replica set with users, which all tests share; each takes databases of its own.
pub fn secured() -> &'static ReplicaSet {
    static SECURED: OnceLock<ReplicaSet> = OnceLock::new();
    SECURED.get_or_init(|| {
        ReplicaSet::builder("secured")
            .root_user("root", "root")
            .start()
            .unwrap()
    })
}

/// The command that makes Keyward's role, from the documentation, for `database`.
pub fn documented_role(database: &str) -> Document {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/security.md")).unwrap();
    let (_, rest) = text.split_once("db.getSiblingDB(\"admin\").runCommand(").unwrap();
    let (command, _) = rest.split_once(")\n```").unwrap();
    let mut command: Document = serde_json::from_str(command).unwrap();
    command.insert("createRole", format!("keyward_{database}"));
    for privilege in command.get_array_mut("privileges").unwrap() {
        let resource = privilege
            .as_document_mut()
            .unwrap()
            .get_document_mut("resource")
            .unwrap();
        if resource.get_str("db").ok() == Some("shop") {
            resource.insert("db", database);
        }
    }
    command
}

pub async fn run(client: &Client, database: &str, command: Document) -> Result<Document, (i32, String)> {
    client
        .database(database)
        .run_command(command)
        .await
        .map_err(|error| match *error.kind {
            ErrorKind::Command(error) => (error.code, error.message),
            other => (0, other.to_string()),
        })
}

pub async fn admin(command: Document) {
    run(&secured().client(), "admin", command).await.unwrap();
}

pub async fn create_user(name: &str, roles: Vec<Bson>) {
    admin(doc! { "createUser": name, "pwd": name, "roles": roles }).await;
}

/// Makes Keyward's user for `database`, with just the documented role, and starts a Keyward with it. It has the shortest lease, and sweeps
/// as often as possible.
pub async fn start(database: &str, constraints: &str) -> Keyward {
    start_with_lease(database, "1s", constraints).await
}

/// The same with another lease.
pub async fn start_with_lease(database: &str, lease: &str, constraints: &str) -> Keyward {
    admin(documented_role(database)).await;
    let name = format!("keyward_{database}");
    create_user(&name, vec![name.clone().into()]).await;
    let uri = uri_of(&name);
    let (settings, constraints) = (format!("{lease}\nsweep: 1s"), constraints.to_owned());
    tokio::task::spawn_blocking(move || Keyward::start_with_lease(&uri, &settings, &constraints))
        .await
        .unwrap()
}

pub fn uri_of(user: &str) -> String {
    secured().uri().replacen("root:root@", &format!("{user}:{user}@"), 1)
}

/// A client of Keyward's that logs in as `user`, or as nobody.
pub fn client(keyward: &Keyward, user: Option<&str>) -> Client {
    client_called(keyward, user, None)
}

/// The same, under a name by which a fail point knows it.
pub fn client_called(keyward: &Keyward, user: Option<&str>, name: Option<&str>) -> Client {
    let mut options = ClientOptions::builder()
        .hosts(vec![ServerAddress::parse(&keyward.address).unwrap()])
        .build();
    options.max_pool_size = Some(1);
    options.app_name = name.map(str::to_owned);
    options.credential = user.map(|user| {
        Credential::builder()
            .username(user.to_owned())
            .password(user.to_owned())
            .build()
    });
    Client::with_options(options).unwrap()
}

pub fn role(name: &str, database: &str) -> Bson {
    doc! { "role": name, "db": database }.into()
}

pub async fn reservations(database: &str) -> Vec<Document> {
    use futures_util::TryStreamExt;
    let client = secured().client();
    let reservations = client
        .database(database)
        .collection::<Document>("keyward.users.email_1");
    reservations.find(doc! {}).await.unwrap().try_collect().await.unwrap()
}

pub fn counted(keyward: &Keyward, name: &str) -> u64 {
    let metrics = keyward.metrics();
    let line = metrics
        .lines()
        .find(|line| line.starts_with(&format!("{name} ")))
        .unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Every kind of write, with an email that is taken or free.
pub fn writes(email: &str) -> Vec<Document> {
    vec![
        doc! { "insert": "users", "documents": [{ "_id": 9, "email": email }] },
        doc! { "update": "users", "updates": [{ "q": { "_id": 1 }, "u": { "$set": { "email": email } } }] },
        doc! { "update": "users", "updates": [{ "q": { "_id": 1 }, "u": [{ "$set": { "email": email } }] }] },
        doc! { "update": "users", "updates": [{ "q": { "_id": 8 }, "u": { "email": email }, "upsert": true }] },
        doc! { "delete": "users", "deletes": [{ "q": { "email": email }, "limit": 1 }] },
        doc! { "findAndModify": "users", "query": { "_id": 1 }, "update": { "$set": { "email": email } } },
        doc! { "findAndModify": "users", "query": { "_id": 8 }, "update": { "email": email }, "upsert": true },
        doc! { "findAndModify": "users", "query": { "email": email }, "remove": true },
    ]
}
