//! The scene: two people with one e-mail address on two shards, once with MongoDB alone and once through Keyward.

use std::error::Error;
use std::net::SocketAddr;

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::error::{ErrorKind, WriteFailure};
use mongodb::{Client, Collection};
use testbed::Cluster;

pub const DATABASE: &str = "shop";
/// The collection that Keyward protects.
pub const PROTECTED: &str = "shop.users";
/// One just like it that nobody protects.
const BARE: &str = "shop.bare";

type Played = Result<(), Box<dyn Error>>;

/// Shards both collections by country: A to M on one shard, N to Z on the other.
pub async fn prepare(cluster: &Cluster) -> Played {
    let shards: Vec<&str> = cluster.shards().iter().map(|shard| shard.name()).collect();
    let admin = cluster.client().database("admin");
    admin
        .run_command(doc! { "enableSharding": DATABASE, "primaryShard": shards[0] })
        .await?;
    for collection in [PROTECTED, BARE] {
        let shard = doc! { "shardCollection": collection, "key": { "country": 1 } };
        admin.run_command(shard).await?;
        admin
            .run_command(doc! { "split": collection, "middle": { "country": "n" } })
            .await?;
        let upper = doc! { "moveChunk": collection, "find": { "country": "nz" }, "to": shards[1] };
        admin.run_command(upper).await?;
    }
    Ok(())
}

pub async fn play(cluster: &Cluster, keyward: SocketAddr) -> Played {
    let router = cluster.client();
    let through_keyward = Client::with_uri_str(format!("mongodb://{keyward}")).await?;
    alone(&router).await?;
    protected(&through_keyward).await?;
    where_it_lies(cluster).await?;
    made_by_application(&through_keyward).await
}

async fn alone(router: &Client) -> Played {
    heading("MongoDB alone. Sharded by country: Austria's users on one shard, New Zealand's on the other.");
    let bare = router.database(DATABASE).collection::<Document>("bare");
    insert(&bare, doc! { "country": "at", "email": "ann@example.com" }).await?;
    insert(&bare, doc! { "country": "nz", "email": "ann@example.com" }).await?;
    let count = bare.count_documents(doc! { "email": "ann@example.com" }).await?;
    say(&format!(
        "Each shard knows only its own documents: {count} users have that address now."
    ));
    say("A unique index on it?");
    let index = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true };
    let created = router
        .database(DATABASE)
        .run_command(doc! { "createIndexes": "bare", "indexes": [index] })
        .await;
    match created {
        Ok(_) => Err("a unique index without the shard key was created".into()),
        Err(error) => {
            show(&format!(
                "createIndex({{ email: 1 }}, {{ unique: true }})  →  {}",
                text_of(&error)
            ));
            Ok(())
        }
    }
}

async fn protected(through_keyward: &Client) -> Played {
    heading("The same through Keyward, with `key: { email: 1 }` for shop.users in its configuration.");
    let users = through_keyward.database(DATABASE).collection::<Document>("users");
    insert(&users, doc! { "country": "at", "email": "ann@example.com" }).await?;
    insert(&users, doc! { "country": "nz", "email": "bob@example.com" }).await?;
    refused(&users, doc! { "country": "nz", "email": "ann@example.com" }).await?;
    say("Just what a unique index on an unsharded collection would have said.");
    Ok(())
}

async fn where_it_lies(cluster: &Cluster) -> Played {
    heading("Where everything lies, read on each shard directly (a reservation's token and time left out):");
    for shard in cluster.shards() {
        println!("  {}", shard.name());
        let shard = shard.client().database(DATABASE);
        list(&shard.collection("users"), "document   ").await?;
        list(&shard.collection("keyward.users.email_1"), "reservation").await?;
    }
    say(
        "A reservation says which document its key belongs to. It lies on the shard that its key leads to, wherever the",
    );
    say("document lies: whoever else wants that key is led to the same shard, and loses there.");
    Ok(())
}

async fn made_by_application(through_keyward: &Client) -> Played {
    heading(
        "An application makes a unique index of its own, which MongoDB alone refused. Keyward needs no configuration for it.",
    );
    let shop = through_keyward.database(DATABASE);
    let index = doc! { "key": { "phone": 1 }, "name": "phone_1", "unique": true, "sparse": true };
    shop.run_command(doc! { "createIndexes": "users", "indexes": [index] })
        .await?;
    show("createIndex({ phone: 1 }, { unique: true, sparse: true })  →  ok");
    let users = shop.collection::<Document>("users");
    insert(
        &users,
        doc! { "country": "at", "email": "eve@example.com", "phone": "555" },
    )
    .await?;
    refused(
        &users,
        doc! { "country": "nz", "email": "dan@example.com", "phone": "555" },
    )
    .await
}

/// Inserts a document whose key is taken on another shard.
async fn refused(users: &Collection<Document>, second: Document) -> Played {
    show(&format!("insertOne({second})"));
    match users.insert_one(&second).await {
        Ok(_) => Err("Keyward let a duplicate in".into()),
        Err(error) => {
            show(&format!("  →  {}", text_of(&error)));
            Ok(())
        }
    }
}

async fn insert(collection: &Collection<Document>, document: Document) -> Played {
    collection.insert_one(&document).await?;
    show(&format!("insertOne({document})  →  ok"));
    Ok(())
}

async fn list(collection: &Collection<Document>, kind: &str) -> Played {
    let mut documents = collection
        .find(doc! {})
        .projection(doc! { "token": 0, "at": 0 })
        .await?;
    while let Some(document) = documents.try_next().await? {
        println!("    {kind}  {document}");
    }
    Ok(())
}

/// The server's own words.
fn text_of(error: &mongodb::error::Error) -> String {
    match &*error.kind {
        ErrorKind::Write(WriteFailure::WriteError(refused)) => {
            let details = refused
                .details
                .as_ref()
                .map_or_else(String::new, |details| format!("\n     {details}"));
            format!("error {}: {}{details}", refused.code, refused.message)
        }
        ErrorKind::Command(refused) => format!("error {}: {}", refused.code, refused.message),
        other => other.to_string(),
    }
}

fn heading(text: &str) {
    println!("\n— {text}\n");
}

fn say(text: &str) {
    println!("  {text}");
}

fn show(text: &str) {
    println!("    {text}");
}
