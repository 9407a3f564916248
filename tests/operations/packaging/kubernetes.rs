//! The sidecar's manifest: held against Kubernetes' own schemas, and its configuration against Keyward's. It has not been run on a
//! cluster.

use std::path::Path;
use std::process::Command;

use keyward::config::Config;
use serde::Deserialize;

use crate::packaging::read;

/// The validator, and the version of Kubernetes whose schemas it is asked for.
const VALIDATOR: &str = "kubernetes-validate==1.37.0";
const VERSION: &str = "1.33";

pub fn documents(text: &str) -> Vec<serde_yaml::Value> {
    let documents = serde_yaml::Deserializer::from_str(text).map(serde_yaml::Value::deserialize);
    documents
        .map(Result::unwrap)
        .filter(|document| !document.is_null())
        .collect()
}

pub fn of_kind<'d>(documents: &'d [serde_yaml::Value], kind: &str) -> &'d serde_yaml::Value {
    let found = documents.iter().find(|document| document["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind}"))
}

/// Whether Kubernetes' schemas allow `text`, no field but theirs; and what stands against it.
pub fn validate(text: &str) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("manifest.yaml");
    std::fs::write(&file, text).unwrap();
    let python = testbed::python_with(&[VALIDATOR]).unwrap();
    let mut validator = Command::new(python);
    validator.args(["-m", "kubernetes_validate", "--strict", "--kubernetes-version", VERSION]);
    let output = validator.arg(&file).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Keyward accepts the configuration in a ConfigMap, and the pod of a `workload` gives it its port and the time to drain.
pub fn assert_it_runs(documents: &[serde_yaml::Value], workload: &str) -> Config {
    let text = of_kind(documents, "ConfigMap")["data"]["keyward.yaml"]
        .as_str()
        .unwrap();
    let config = Config::from_text(Path::new("keyward.yaml"), text, Some("mongodb://mongos/")).unwrap();
    assert!(!config.constraints.is_empty());
    let pod = &of_kind(documents, workload)["spec"]["template"]["spec"];
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(
        grace > (config.drain_delay + config.drain).as_secs(),
        "it would be killed before it has drained"
    );
    let containers = ["initContainers", "containers"];
    let containers = containers.iter().filter_map(|kind| pod[*kind].as_sequence()).flatten();
    let keyward = containers
        .into_iter()
        .find(|container| container["name"] == "keyward")
        .unwrap();
    let ports = keyward["ports"].as_sequence().unwrap();
    let admin = ports.iter().find(|port| port["name"] == "admin").unwrap();
    assert_eq!(admin["containerPort"].as_u64().unwrap(), u64::from(config.admin.port()));
    assert_eq!(keyward["args"][2], "/etc/keyward/keyward.yaml");
    config
}

#[test]
fn the_sidecar_is_what_kubernetes_takes_and_runs_what_keyward_takes() {
    let text = read("deploy/kubernetes/sidecar.yaml");
    let (is_valid, why) = validate(&text);
    assert!(is_valid, "{why}");
    let (is_valid, _) = validate(&text.replace("periodSeconds: 2", "periodSeconds: often"));
    assert!(!is_valid, "the validator finds nothing");
    let documents = documents(&text);
    assert_it_runs(&documents, "Deployment");
    let pod = &of_kind(&documents, "Deployment")["spec"]["template"]["spec"];
    assert_eq!(pod["initContainers"][0]["restartPolicy"], "Always", "no native sidecar");
}
