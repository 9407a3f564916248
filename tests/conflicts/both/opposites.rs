//! Many clients that want the same keys in opposite orders: nobody waits for ever, and nothing is left over.

use std::time::Duration;

use bson::{Document, doc};

use crate::strategy::{PHONE, Strategy};
use crate::trial::{assert_agreement, insert, keyward, write_errors};

const CLIENTS: i32 = 12;
const ROUNDS: i32 = 5;
const BATCH: i32 = 16;
/// Far more than it takes; a deadlock would take for ever, one that only leases end half a minute each.
const LONGEST: Duration = Duration::from_secs(120);

/// Half of the clients go up, the others down; and where one goes up in addresses the next goes down in phones.
fn batch(client: i32, round: i32) -> Vec<Document> {
    let document = |index: i32| {
        let up = round * BATCH + index;
        let down = round * BATCH + BATCH - 1 - index;
        let (email, phone) = match client % 4 {
            0 => (up, down),
            1 => (down, up),
            2 => (up, up),
            _ => (down, down),
        };
        let id = client * 10_000 + round * BATCH + index;
        let region = if (id + client) % 2 == 0 { "a" } else { "z" };
        let mut document = doc! { "_id": id, "region": region, "email": email };
        if index % 5 != 0 {
            document.insert("phone", phone);
        }
        document
    };
    (0..BATCH).map(document).collect()
}

async fn batches_in_opposite_orders_all_finish(strategy: Strategy) {
    let database = strategy.database("opposites");
    let cluster = strategy.users(database);
    let keywards = [
        keyward(cluster, database, "30s", &[strategy.email(), PHONE]),
        keyward(cluster, database, "30s", &[strategy.email(), PHONE]),
    ];
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let client = keywards[number as usize / 2 % 2].client_without_retries().await;
        clients.push(tokio::spawn(async move {
            let mut inserted = 0;
            for round in 0..ROUNDS {
                let command = insert(batch(number, round), number % 3 == 0);
                let reply = client.database(database).run_command(command).await.unwrap();
                assert!(write_errors(&reply).iter().all(|(_, code)| *code == 11000), "{reply}");
                inserted += reply.get_i32("n").unwrap();
            }
            inserted
        }));
    }
    let all = async {
        let mut inserted = 0;
        for client in clients {
            inserted += client.await.unwrap();
        }
        inserted
    };
    let inserted = tokio::time::timeout(LONGEST, all)
        .await
        .expect("they wait for each other");
    assert!(inserted >= ROUNDS, "{inserted}");
    assert_agreement(cluster, database, "email").await;
    assert_agreement(cluster, database, "phone").await;
}

on_both_strategies! {
    batches_in_opposite_orders_all_finish;
}
