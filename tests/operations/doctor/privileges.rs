//! A user that lacks something.

use super::{config, doctor, examined, lines};
use crate::authorization::{admin, create_user, documented_role, role, uri_of};

/// The documented role is enough for the constraints, but not for a scratch database: said once, and what needs it is skipped.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_a_scratch_database() {
    admin({
        let mut command = documented_role("shop");
        command.insert("createRole", "doctored");
        command
    })
    .await;
    create_user("doctored", vec!["doctored".into()]).await;
    let output = doctor(&config(&uri_of("doctored")), &[]).output().unwrap();
    let lines = lines(&output);
    assert_eq!(output.status.code(), Some(1), "{lines:#?}");
    let warned: Vec<&String> = lines.iter().filter(|line| line.starts_with('‼')).collect();
    assert_eq!(warned.len(), 1, "{lines:#?}");
    assert!(
        warned[0].starts_with("‼ scratch database: the user may not write to a scratch database: "),
        "{warned:?}"
    );
    assert!(lines.contains(&"✓ role".to_owned()), "{lines:#?}");
    let skipped = "- retried statements: skipped, the user may not write to a scratch database";
    assert!(lines.iter().any(|line| line == skipped), "{lines:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_the_role() {
    create_user(
        "reader_of_shop",
        vec![
            role("read", "shop"),
            role("readWriteAnyDatabase", "admin"),
            role("dbAdminAnyDatabase", "admin"),
        ],
    )
    .await;
    let (exit, lines) = examined(&uri_of("reader_of_shop"));
    assert_eq!(exit, 2, "{lines:#?}");
    let (_, result, seen) = lines.iter().find(|(name, ..)| name == "role").unwrap();
    assert_eq!(result, "failed", "{seen}");
    assert!(seen.starts_with("the user lacks "), "{seen}");
    assert!(seen.contains("killAnySession on { \"cluster\": true }"), "{seen}");
    let others = lines
        .iter()
        .filter(|(name, result, _)| name != "role" && result == "failed");
    assert_eq!(others.count(), 0, "{lines:#?}");
}
