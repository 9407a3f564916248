//! Clients make and drop constraints while a Keyward reloads its configuration, which reads all documents.

use nix::sys::signal::Signal;
use testkit::relay::{Fate, Relay};

use super::*;

/// Keeps every Keyward from reading the documents of `orders` for so long, as a Keyward does that reads them itself. It may last for less
/// than a minute.
fn claim(cluster: &Cluster, database: &str, seconds: i64) {
    let until = doc! { "$add": ["$$NOW", seconds * 1_000] };
    let claimed = vec![doc! { "$set": { "claim": { "by": bson::oid::ObjectId::new(), "until": until } } }];
    let updates = vec![doc! { "q": { "_id.collection": "orders" }, "u": claimed }];
    let update = doc! { "update": "keyward.constraints", "updates": updates };
    must(&cluster.run(database, update).unwrap());
}

/// The settings of a Keyward with these constraints.
fn settings(cluster: &Cluster, constraints: &str) -> String {
    settings_at(&cluster.uri(), constraints)
}

/// The same with this connection string.
fn settings_at(uri: &str, constraints: &str) -> String {
    format!("upstream: {uri}\nlease: 10s\nreload_interval: 0s\nconstraints: [{constraints}]\n")
}

fn is_under_way(keyward: &Keyward) -> bool {
    keyward.get("/reload").contains("under way")
}

/// A constraint on the numbers of `orders`, as a file states it.
fn of_orders(database: &str) -> String {
    format!("{{ collection: {database}.orders, key: {{ n: 1 }} }}")
}

/// A cluster with `users` and `orders`, and a Keyward without constraints. The one on `orders` was in its file, and its definition has
/// stayed.
fn start_with_orders(database: &str) -> (testbed::Alone<Cluster>, Keyward) {
    let cluster = Cluster::alone().unwrap();
    shard_users_of(&cluster, database);
    let orders = format!("{database}.orders");
    shard_on_two(&cluster, &orders, doc! { "region": 1 }, doc! { "region": "m" });
    let keyward = Keyward::of(&settings(&cluster, "")).leaving();
    for constraints in [&*of_orders(database), ""] {
        assert_eq!(keyward.reload(&settings(&cluster, constraints))["outcome"], "applied");
    }
    (cluster, keyward)
}

/// Has other settings loaded, which lasts until the claim ends. Returns how many reloads came before.
fn begin_reload(keyward: &Keyward, cluster: &Cluster, database: &str, settings: &str) -> u64 {
    claim(cluster, database, 55);
    keyward.rewrite(settings);
    let reloads = keyward.count_reloads();
    keyward.send(Signal::SIGHUP);
    keyward.until("the reload", || is_under_way(keyward));
    reloads
}

/// The command with a time limit that ends before the claim does.
fn within_a_claim(mut command: Document) -> Document {
    command.insert("maxTimeMS", 40_000);
    command
}

/// Writes two documents past Keyward that violate the constraint on `orders`.
fn insert_violating(cluster: &Cluster, database: &str) {
    let violating = [(1, "a"), (2, "z")].map(|(id, region)| doc! { "_id": id, "region": region, "n": 1 });
    let insert = doc! { "insert": "orders", "documents": violating.to_vec() };
    must(&cluster.run(database, insert).unwrap());
}

/// Other Keywards don't wait for the end of the reload, and the reload undoes nothing of it, whether or not it is refused.
#[test]
fn the_list_is_followed_while_a_reload_is_under_way() {
    const DATABASE: &str = "created_amid_reload";
    let (cluster, keyward) = start_with_orders(DATABASE);
    let more = settings(&cluster, &of_orders(DATABASE));
    write_first(&keyward, DATABASE);
    let builder = start_at(&cluster);
    let reloads = begin_reload(&keyward, &cluster, DATABASE, &more);
    must(&reply(&builder, DATABASE, &within_a_claim(create([unique_email()]))));
    assert!(is_under_way(&keyward), "{}", keyward.get("/reload"));
    assert_first_is_held(&keyward, DATABASE);
    insert_violating(&cluster, DATABASE);
    claim(&cluster, DATABASE, 0);
    assert_eq!(keyward.reloaded_after(reloads)["outcome"], "refused");
    assert_first_is_held(&keyward, DATABASE);

    must(
        &cluster
            .run(
                DATABASE,
                doc! { "delete": "orders", "deletes": [{ "q": { "_id": 2 }, "limit": 0 }] },
            )
            .unwrap(),
    );
    let reloads = begin_reload(&keyward, &cluster, DATABASE, &more);
    let drop = doc! { "dropIndexes": "users", "index": "email_1" };
    must(&reply(&builder, DATABASE, &within_a_claim(drop)));
    assert_eq!(insert_pair(&keyward, DATABASE, 10, "y"), [Ok(()), Ok(())]);
    claim(&cluster, DATABASE, 55);
    let name = doc! { "key": { "name": 1 }, "name": "name_1", "unique": true, "sparse": true };
    must(&reply(&builder, DATABASE, &within_a_claim(create([name]))));
    assert!(is_under_way(&keyward), "{}", keyward.get("/reload"));
    claim(&cluster, DATABASE, 0);
    assert_eq!(keyward.reloaded_after(reloads)["outcome"], "applied");
    let order = |id: i32| doc! { "insert": "orders", "documents": [{ "_id": id, "region": "z", "n": 1 }] };
    let refused = reply(&keyward, DATABASE, &order(3));
    assert!(refused.to_string().contains("11000"), "{refused}");
    let named = |id: i32, region: &str| doc! { "_id": id, "region": region, "name": "n" };
    assert_eq!(keyward.insert(DATABASE, named(20, "a")), Ok(()));
    assert_eq!(keyward.insert(DATABASE, named(21, "z")), Err(11_000));
    assert_eq!(insert_pair(&keyward, DATABASE, 30, "z"), [Ok(()), Ok(())]);
}

/// Until then it writes nothing at all, and the reload may take hours.
#[test]
fn a_keyward_that_comes_back_to_the_register_amid_a_reload_applies_what_was_made_anew() {
    const DATABASE: &str = "created_anew_amid_reload";
    let (cluster, keyward) = start_with_orders(DATABASE);
    let more = settings(&cluster, &of_orders(DATABASE));
    let builder = start_at(&cluster);
    must(&reply(&builder, DATABASE, &create([unique_email()])));
    write_first(&keyward, DATABASE);
    let of_orders = doc! { "find": "keyward.constraints", "filter": { "_id.name": "n_1" } };
    let identity = first_of(&cluster, DATABASE, of_orders)
        .get_object_id("identity")
        .unwrap();
    let reloads = begin_reload(&keyward, &cluster, DATABASE, &more);
    // After this it only waits to read the documents.
    keyward.until("it reserves for the new constraint", || {
        let found = cluster.run("keyward", doc! { "find": "keywards" }).unwrap();
        found.to_string().contains(&identity.to_hex())
    });
    keyward.freeze();
    forget(&cluster, &keyward);
    // Past Keyward.
    cluster.run(DATABASE, doc! { "drop": "users" }).unwrap();
    shard_collated_on_two(&cluster, &format!("{DATABASE}.users"));
    must(&reply(&builder, DATABASE, &within_a_claim(create([unique_email()]))));
    claim(&cluster, DATABASE, 55);
    keyward.wake();
    until_back(&keyward, DATABASE);
    assert!(is_under_way(&keyward), "{}", keyward.get("/reload"));
    let other_case = doc! { "_id": 10, "region": "a", "email": "BACK" };
    assert_eq!(builder.insert(DATABASE, other_case), Err(11_000));
    claim(&cluster, DATABASE, 0);
    assert_eq!(keyward.reloaded_after(reloads)["outcome"], "applied");
}

/// The refused file states a client's constraint, too. It has its place meanwhile, and nothing of it stays.
#[test]
fn a_refused_reload_leaves_clients_constraints_to_their_list() {
    const DATABASE: &str = "created_amid_refused";
    let (cluster, keyward) = start_with_orders(DATABASE);
    let builder = start_at(&cluster);
    must(&reply(&builder, DATABASE, &create([unique_email()])));
    write_first(&keyward, DATABASE);
    insert_violating(&cluster, DATABASE);
    let is_noted = |keyward: &Keyward| keyward.get("/readyz").contains("users.email_1");
    let of_orders = of_orders(DATABASE);
    let both = format!("{of_orders}, {{ collection: {DATABASE}.users, key: {{ email: 1 }} }}");
    let refused_amid = |command: Document| {
        let reloads = begin_reload(&keyward, &cluster, DATABASE, &settings(&cluster, &both));
        must(&reply(&builder, DATABASE, &command));
        assert!(is_under_way(&keyward), "{}", keyward.get("/reload"));
        assert_first_is_held(&keyward, DATABASE);
        if command.contains_key("dropIndexes") {
            keyward.until("the note that it isn't enforced", || is_noted(&keyward));
        }
        claim(&cluster, DATABASE, 0);
        assert_eq!(keyward.reloaded_after(reloads)["outcome"], "refused");
    };
    let name = doc! { "key": { "name": 1 }, "name": "name_1", "unique": true, "sparse": true };
    refused_amid(within_a_claim(create([name])));
    assert_first_is_held(&keyward, DATABASE);
    assert_eq!(unique_indexes(&keyward, DATABASE), ["email_1", "name_1"]);
    refused_amid(within_a_claim(doc! { "dropIndexes": "users", "index": "email_1" }));
    assert_eq!(insert_pair(&keyward, DATABASE, 10, "x"), [Ok(()), Ok(())]);
    assert_eq!(unique_indexes(&keyward, DATABASE), ["name_1"]);
    assert!(!is_noted(&keyward), "{}", keyward.get("/readyz"));
    // Otherwise other Keywards would count on this one.
    assert_eq!(listing(&cluster, DATABASE, "email_1"), []);
}

/// The entries in the register that list the constraint with this name.
fn listing(cluster: &Cluster, database: &str, name: &str) -> Vec<Bson> {
    let of_name = doc! { "find": "keyward.constraints", "filter": { "_id.name": name } };
    let identity = first_of(cluster, database, of_name).get_object_id("identity").unwrap();
    let listing = doc! { "find": "keywards", "filter": { "constraints": identity } };
    let found = cluster.run("keyward", listing).unwrap();
    let cursor = found.get_document("cursor").unwrap();
    cursor.get_array("firstBatch").unwrap().clone()
}

/// The definitions can't be reached for a while: the reload fails, and so does its withdrawal. Otherwise others would count on this Keyward,
/// which no longer reserves.
#[test]
fn a_constraint_that_a_refused_reload_left_goes_with_the_next_list() {
    const DATABASE: &str = "created_amid_outage";
    let (cluster, first) = start_with_orders(DATABASE);
    drop(first);
    let is_cut = Arc::new(AtomicBool::new(false));
    let loses = is_cut.clone();
    let judge = move |request: &[u8]| {
        let definitions = b"keyward.constraints";
        let mut parts = request.windows(definitions.len());
        match loses.load(Ordering::SeqCst) && parts.any(|part| part == definitions) {
            true => Fate::Lost,
            false => Fate::Passed,
        }
    };
    let relay = Relay::judged(cluster.router_address(), judge, |_| Fate::Passed);
    let keyward = Keyward::of(&settings_at(&relay.uri(), "")).leaving();
    write_first(&keyward, DATABASE);
    let builder = start_at(&cluster);
    let more = settings_at(&relay.uri(), &of_orders(DATABASE));
    let reloads = begin_reload(&keyward, &cluster, DATABASE, &more);
    must(&reply(&builder, DATABASE, &within_a_claim(create([unique_email()]))));
    assert!(is_under_way(&keyward), "{}", keyward.get("/reload"));
    is_cut.store(true, Ordering::SeqCst);
    assert_eq!(keyward.reloaded_after(reloads)["outcome"], "refused");
    is_cut.store(false, Ordering::SeqCst);
    let log = keyward.log();
    assert!(
        log.contains("the new constraints of a refused configuration go on to reserve"),
        "{log}"
    );
    claim(&cluster, DATABASE, 0);
    let order = |id: i32| doc! { "insert": "orders", "documents": [{ "_id": id, "region": "z", "n": 1 }] };
    must(&reply(&keyward, DATABASE, &order(1)));
    assert!(!listing(&cluster, DATABASE, "n_1").is_empty());
    let name = doc! { "key": { "name": 1 }, "name": "name_1", "unique": true, "sparse": true };
    must(&reply(&builder, DATABASE, &create([name])));
    keyward.until("it no longer lists the constraint", || {
        listing(&cluster, DATABASE, "n_1").is_empty()
    });
    must(&reply(&keyward, DATABASE, &order(2)));
    assert_first_is_held(&keyward, DATABASE);
}
