//! Checks the versions of the servers.

use bson::{Document, doc};

use super::check::{CheckError, CheckOutcome};
use super::scratch::Scratch;
use crate::prepare;

/// The oldest feature version of a cluster with supported servers.
const FEATURES_MIN: f64 = 6.0;

/// Each server that can be asked speaks a wire version that is new enough.
pub async fn wire(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let mut versions = vec![scratch.hello.clone()];
    let mut silent = Vec::new();
    for address in scratch.servers() {
        match scratch.hello_of(&address).await {
            Ok(hello) => versions.push(hello),
            Err(CheckError::Interrupted) => return Err(CheckError::Interrupted),
            Err(_) => silent.push(address),
        }
    }
    for hello in &versions {
        if let Err(error) = prepare::check_version(hello) {
            return Ok(CheckOutcome::Failed(error.to_string()));
        }
    }
    if !silent.is_empty() {
        return Ok(CheckOutcome::Warned(format!("no answer from {}", silent.join(", "))));
    }
    let versions = versions.iter().filter_map(|hello| hello.get_i32("maxWireVersion").ok());
    let lowest = versions.min().unwrap_or_default();
    Ok(CheckOutcome::Passed(format!("wire version {lowest}")))
}

/// The servers of the connection are of a supported release.
pub async fn release(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let reply = scratch.run_in("admin", doc! { "buildInfo": 1 }).await?;
    let version = reply.get_str("version").unwrap_or("unknown");
    Ok(CheckOutcome::Passed(version.to_owned()))
}

/// The cluster's feature version isn't that of an older release.
pub async fn features(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let ask = doc! { "getParameter": 1, "featureCompatibilityVersion": 1 };
    let reply = super::stated(scratch.run_in("admin", ask).await)?;
    let version = reply.get_document("featureCompatibilityVersion");
    let Some(version) = version.ok().and_then(version_of) else {
        let why = "the server doesn't state its feature version".to_owned();
        return Err(CheckError::Impossible(why));
    };
    match version.parse::<f64>() {
        Ok(number) if number < FEATURES_MIN => Ok(CheckOutcome::Warned(format!("feature version {version}"))),
        _ => Ok(CheckOutcome::Passed(version)),
    }
}

fn version_of(reply: &Document) -> Option<String> {
    Some(reply.get_str("version").ok()?.to_owned())
}
