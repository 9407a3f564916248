//! Encryption on both sides, with real drivers and a real server: who gets in, what is said to who doesn't, and
//! certificates that change while Keyward runs.

#![expect(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bson::{Document, doc};
use mongodb::Client;
use mongodb::options::{ClientOptions, Tls, TlsOptions};
use tempfile::TempDir;
use testbed::ReplicaSet;
use testkit::Keyward;
use testkit::certificates::{Authority, write};

/// A folder with an authority, a certificate of Keyward's, and one of a client's.
struct Folder {
    folder: TempDir,
    authority: Authority,
}

impl Folder {
    fn new() -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new("authority");
        write(folder.path(), "ca.pem", &authority.pem);
        write(folder.path(), "keyward.pem", &authority.sign("keyward"));
        write(folder.path(), "client.pem", &authority.sign("client"));
        Folder { folder, authority }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn file(&self, name: &str) -> String {
        self.path().join(name).to_str().unwrap().to_owned()
    }

    /// The `tls` section with `more` in it.
    fn tls(&self, more: &str) -> String {
        format!("tls: {{ certificate: {}{more} }}", self.file("keyward.pem"))
    }

    fn start(&self, upstream: &str, more: &str, constraints: &str) -> Keyward {
        let settings = format!("10s\n{}", self.tls(more));
        Keyward::start_with_lease(upstream, &settings, constraints)
    }
}

/// A client that trusts `ca`, and shows `certificate` if there is one.
async fn client(address: &str, ca: &str, certificate: Option<&str>) -> Client {
    let mut options = ClientOptions::parse(format!("mongodb://{address}/?serverSelectionTimeoutMS=5000"))
        .await
        .unwrap();
    let mut tls = TlsOptions::default();
    tls.ca_file_path = Some(ca.into());
    tls.cert_key_file_path = certificate.map(Into::into);
    options.tls = Some(Tls::Enabled(tls));
    Client::with_options(options).unwrap()
}

async fn ping(client: &Client) -> Result<(), String> {
    let ping = client.database("admin").run_command(doc! { "ping": 1 }).await;
    ping.map(drop).map_err(|error| error.to_string())
}

/// Waits until a metric has a value.
fn wait_for(keyward: &Keyward, line: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !keyward.metrics().contains(&format!("\n{line}\n")) {
        assert!(Instant::now() < deadline, "{line} in {}", keyward.metrics());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_encrypted_from_the_driver_to_a_server_that_asks_for_certificates() {
    let folder = Folder::new();
    let (ca, member) = (
        folder.path().join("ca.pem"),
        write(folder.path(), "member.pem", &folder.authority.sign("member")),
    );
    let set = tokio::task::spawn_blocking(move || ReplicaSet::builder("tls").require_tls(&member, &ca).start());
    let set = set.await.unwrap().unwrap();
    let upstream = format!(
        "{}&tls=true&tlsCAFile={}&tlsCertificateKeyFile={}",
        set.uri(),
        folder.file("ca.pem"),
        folder.file("client.pem")
    );
    for strategy in ["transaction", "compensating"] {
        let constraint = format!("  - {{ collection: {strategy}.users, key: {{ email: 1 }}, strategy: {strategy} }}\n");
        let keyward = folder.start(&upstream, "", &constraint);
        let client = client(&keyward.address, &folder.file("ca.pem"), None).await;
        let users = client.database(strategy).collection::<Document>("users");
        users.insert_one(doc! { "_id": 1, "email": "a" }).await.unwrap();
        let duplicate = users.insert_one(doc! { "_id": 2, "email": "a" }).await.unwrap_err();
        assert!(duplicate.to_string().contains("E11000"), "{duplicate}");
        // Larger than any buffer on the way, in both directions, several at once.
        let large = |id: i32| doc! { "_id": id, "email": id, "text": "x".repeat(3_000_000) };
        users.insert_many((10..20).map(large)).await.unwrap();
        let reading = (10..20).map(|id| users.find_one(doc! { "_id": id }));
        for found in futures_util::future::join_all(reading.map(IntoFuture::into_future)).await {
            assert_eq!(found.unwrap().unwrap().get_str("text").unwrap().len(), 3_000_000);
        }
        let script = "import sys, pymongo\n\
             c = pymongo.MongoClient('mongodb://' + sys.argv[1], tls=True, tlsCAFile=sys.argv[2])\n\
             u = c[sys.argv[3]].users\n\
             u.insert_one({'_id': 3, 'email': 'b'})\n\
             try:\n    u.update_one({'_id': 3}, {'$set': {'email': 'a'}})\n\
             except pymongo.errors.DuplicateKeyError as e:\n    print(e.details['keyValue'])\n";
        let mut pymongo = Command::new(testbed::python().unwrap());
        pymongo.args(["-c", script, &keyward.address, &folder.file("ca.pem"), strategy]);
        let printed = support_output(&mut pymongo);
        assert_eq!(printed.trim(), "{'email': 'a'}");
    }
    tokio::task::spawn_blocking(|| drop(set)).await.unwrap();
}

fn support_output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Unpacking it would cost other clients memory and time. Its bytes can't be unpacked, so an answer shows that Keyward didn't try.
#[test]
fn a_compressed_message_without_tls_is_answered_without_unpacking_it() {
    let folder = Folder::new();
    let keyward = folder.start(&ReplicaSet::shared().uri(), "", "  []\n");
    // Length, request 7, no response, OP_COMPRESSED, OP_MSG within, its size, zlib.
    let numbers = [34, 7, 0, 2012, 2013, 47_999_984_i32].map(i32::to_le_bytes);
    let message = [numbers.concat(), vec![2], vec![0xff; 9]].concat();
    let mut client = TcpStream::connect(&keyward.address).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    client.write_all(&message).unwrap();
    let mut reply = Vec::new();
    client.read_to_end(&mut reply).unwrap();
    assert!(String::from_utf8_lossy(&reply).contains("tls=true"), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_speaks_no_tls_is_told_so_unless_both_are_allowed() {
    let folder = Folder::new();
    let upstream = ReplicaSet::shared().uri();
    let keyward = folder.start(&upstream, "", "  []\n");
    let plain = testbed::command::run(&keyward.address, "admin", doc! { "ping": 1 }).unwrap_err();
    assert_eq!(plain.code(), Some(141), "{plain}");
    assert!(plain.to_string().contains("tls=true"), "{plain}");
    // The client has its answer before it is counted.
    keyward.until("the count of failed handshakes", || {
        keyward.metric("keyward_client_tls_handshakes_failed_total") == 1
    });
    ping(&client(&keyward.address, &folder.file("ca.pem"), None).await)
        .await
        .unwrap();

    let keyward = folder.start(&upstream, ", mode: preferred", "  []\n");
    testbed::command::run(&keyward.address, "admin", doc! { "ping": 1 }).unwrap();
    ping(&client(&keyward.address, &folder.file("ca.pem"), None).await)
        .await
        .unwrap();
    // A message as long as a handshake begins, in two pieces: it is a message.
    let mut body = doc! { "ping": 1, "$db": "admin", "comment": "" };
    let length = 16 + 4 + 1 + body.to_vec().unwrap().len();
    body.insert("comment", "x".repeat(0x0316 - length));
    let body = body.to_vec().unwrap();
    let header = [0x0316_i32, 1, 0, 2013, 0].map(i32::to_le_bytes).concat();
    let message = [&header[..], &[0], &body].concat();
    assert_eq!((message.len(), message[0], message[1]), (0x0316, 0x16, 0x03));
    let mut socket = TcpStream::connect(&keyward.address).unwrap();
    socket.write_all(&message[..5]).unwrap();
    socket.write_all(&message[5..]).unwrap();
    let mut length = [0; 4];
    socket.read_exact(&mut length).unwrap();
    assert!(i32::from_le_bytes(length) > 16);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_certificates_are_asked_for_where_there_is_an_authority() {
    let folder = Folder::new();
    let stranger = write(
        folder.path(),
        "stranger.pem",
        &Authority::new("stranger").sign("stranger"),
    );
    let (ca, upstream) = (folder.file("ca.pem"), ReplicaSet::shared().uri());
    let reaches = async |keyward: &Keyward, certificate: Option<&str>| {
        ping(&client(&keyward.address, &ca, certificate).await).await.is_ok()
    };
    let (own, stranger) = (folder.file("client.pem"), stranger.to_str().unwrap().to_owned());
    let required = folder.start(&upstream, &format!(", client_ca: {ca}"), "  []\n");
    assert!(reaches(&required, Some(&own)).await);
    assert!(!reaches(&required, None).await);
    assert!(!reaches(&required, Some(&stranger)).await);
    let more = format!(", client_ca: {ca}, client_certificate: optional");
    let optional = folder.start(&upstream, &more, "  []\n");
    assert!(reaches(&optional, Some(&own)).await);
    assert!(reaches(&optional, None).await);
    assert!(!reaches(&optional, Some(&stranger)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_certificates_are_taken_without_a_restart_and_broken_ones_change_nothing() {
    let folder = Folder::new();
    let keyward = folder.start(&ReplicaSet::shared().uri(), "", "  []\n");
    let old = client(&keyward.address, &folder.file("ca.pem"), None).await;
    ping(&old).await.unwrap();

    let in_use = std::fs::read(folder.path().join("keyward.pem")).unwrap();
    write(folder.path(), "keyward.pem", "nothing of use");
    wait_for(&keyward, "keyward_tls_reloads_failed_total 1");
    wait_for(&keyward, "keyward_tls_refused 1");
    std::fs::write(folder.path().join("keyward.pem"), in_use).unwrap();
    wait_for(&keyward, "keyward_tls_refused 0");
    let log = keyward.log();
    assert!(log.contains("the files have the certificates in use again"), "{log}");
    write(folder.path(), "keyward.pem", "nothing of use, either");
    wait_for(&keyward, "keyward_tls_reloads_failed_total 2");
    ping(&client(&keyward.address, &folder.file("ca.pem"), None).await)
        .await
        .unwrap();

    let renewed = Authority::new("renewed");
    write(folder.path(), "new-ca.pem", &renewed.pem);
    // As secrets are renewed that are mounted: a link turns.
    let new = write(folder.path(), "new.pem", &renewed.sign("keyward"));
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&new, &link).unwrap();
    std::fs::rename(&link, folder.path().join("keyward.pem")).unwrap();
    wait_for(&keyward, "keyward_tls_reloads_total 1");
    wait_for(&keyward, "keyward_tls_refused 0");
    ping(&client(&keyward.address, &folder.file("new-ca.pem"), None).await)
        .await
        .unwrap();
    assert!(
        ping(&client(&keyward.address, &folder.file("ca.pem"), None).await)
            .await
            .is_err()
    );
    // Who was connected before stays so.
    ping(&old).await.unwrap();
    assert!(keyward.metrics().contains("\nkeyward_tls_reloads_failed_total 2\n"));
}
