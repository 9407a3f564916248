//! The Helm chart: rendered by Helm itself, held against Kubernetes' own schemas, and its configuration against Keyward's. It has not
//! been run on a cluster.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::packaging::kubernetes::{assert_it_runs, documents, of_kind, validate};
use crate::packaging::{read, repository};

/// Helm 4 as a library, which needs no cluster.
const HELM: &str = "helm-python-sdk==0.2.2";
const CHART: &str = "deploy/helm/keyward";

/// What `helm template shop CHART` and `helm lint --strict` print, as one JSON object.
const SCRIPT: &str = "
import json, sys
from helm_python import Chart, lint
chart, values = sys.argv[1], json.loads(sys.argv[2])
text = Chart.load(chart).render(values=values, name='shop', namespace='default')
print(json.dumps({'text': text, 'lint': lint(chart, values=values, strict=True)}))
";

fn helm(values: &Value) -> Value {
    let python = testbed::python_with(&[HELM]).unwrap();
    let mut helm = Command::new(python);
    helm.args(["-c", SCRIPT])
        .arg(repository().join(CHART))
        .arg(values.to_string());
    let output = helm.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A file of the chart, rendered with `values` on top of the chart's own.
fn file(name: &str, values: &Value) -> String {
    let rendered = helm(values);
    let text = rendered["text"][format!("keyward/templates/{name}")].as_str();
    text.unwrap().to_owned()
}

fn rendered(values: &Value) -> String {
    file("keyward.yaml", values)
}

/// The pod's specification among rendered documents, and its labels and annotations.
fn pod(text: &str) -> serde_yaml::Value {
    of_kind(&documents(text), "StatefulSet")["spec"]["template"].clone()
}

#[test]
fn kubernetes_accepts_the_chart_and_helm_has_nothing_to_say() {
    let text = rendered(&json!({}));
    let (is_valid, why) = validate(&text);
    assert!(is_valid, "{why}\n{text}");
    let config = assert_it_runs(&documents(&text), "StatefulSet");
    assert!(!config.drain_delay.is_zero(), "DNS needs time to forget a pod");
    let lint = &helm(&json!({}))["lint"];
    assert_eq!(lint["errors"], json!([]), "{lint}");
    let worst = lint["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| &message["severity"]);
    assert!(worst.into_iter().all(|severity| *severity == json!(1)), "{lint}");
}

#[test]
fn each_replica_has_an_address_and_the_notes_name_all_of_them() {
    let values = json!({ "replicas": 3, "port": 27200 });
    let text = rendered(&values);
    let all = documents(&text);
    let (service, set) = (of_kind(&all, "Service"), of_kind(&all, "StatefulSet"));
    assert_eq!(service["spec"]["clusterIP"], "None");
    assert_eq!(set["spec"]["serviceName"], service["metadata"]["name"]);
    assert_eq!(set["spec"]["replicas"], 3);
    assert_eq!(service["spec"]["selector"], set["spec"]["selector"]["matchLabels"]);
    let labels = &pod(&text)["metadata"]["labels"];
    for (name, value) in service["spec"]["selector"].as_mapping().unwrap() {
        assert_eq!(&labels[name], value);
    }
    assert_eq!(service["spec"]["ports"][0]["port"], 27200);
    let config = assert_it_runs(&all, "StatefulSet");
    assert_eq!(config.listen.port(), 27200);
    let host = |number| format!("shop-keyward-{number}.shop-keyward.default.svc:27200");
    let uri = format!("mongodb://{}/", [0, 1, 2].map(host).join(","));
    let notes = file("NOTES.txt", &values);
    assert!(notes.contains(&uri), "{notes}");
}

#[test]
fn replicas_keep_apart_and_only_one_is_taken_away_at_a_time() {
    let text = rendered(&json!({}));
    let all = documents(&text);
    let budget = &of_kind(&all, "PodDisruptionBudget")["spec"];
    assert_eq!(budget["maxUnavailable"], 1);
    let selector = &of_kind(&all, "StatefulSet")["spec"]["selector"];
    assert_eq!(&budget["selector"], selector);
    let spread = pod(&text)["spec"]["topologySpreadConstraints"].clone();
    let spread = spread.as_sequence().unwrap();
    let over: Vec<&str> = spread.iter().map(|one| one["topologyKey"].as_str().unwrap()).collect();
    assert_eq!(over, ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]);
    assert!(spread.iter().all(|one| &one["labelSelector"] == selector));
}

#[test]
fn values_come_out_where_they_belong() {
    let text = rendered(&json!({
        "config": {
            "constraints": [{ "collection": "a.b", "key": { "x": 1, "y": -1 }, "sparse": true }],
            "limits": { "max_buffered_bytes": 268_435_456 },
        },
        "volumes": [{ "name": "authority", "secret": { "secretName": "mongodb-ca" } }],
        "volumeMounts": [{ "name": "authority", "mountPath": "/etc/mongodb", "readOnly": true }],
        "tolerations": [{ "key": "proxies", "operator": "Exists" }],
        "nodeSelector": { "pool": "proxies" },
        "affinity": { "podAffinity": {} },
        "whenUnsatisfiable": "DoNotSchedule",
    }));
    let (is_valid, why) = validate(&text);
    assert!(is_valid, "{why}\n{text}");
    let config = assert_it_runs(&documents(&text), "StatefulSet");
    assert_eq!(
        config.constraints[0].proxy_collection().to_string(),
        "a.keyward.b.x_1_y_-1"
    );
    let spec = &pod(&text)["spec"];
    let names = |list: &serde_yaml::Value| -> Vec<String> {
        let list = list.as_sequence().unwrap().iter();
        list.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&spec["volumes"]), ["config", "authority"]);
    assert_eq!(names(&spec["containers"][0]["volumeMounts"]), ["config", "authority"]);
    assert_eq!(spec["tolerations"][0]["key"], "proxies");
    assert_eq!(spec["nodeSelector"]["pool"], "proxies");
    assert_eq!(
        spec["topologySpreadConstraints"][1]["whenUnsatisfiable"],
        "DoNotSchedule"
    );
}

/// A mount below another one that is read-only can't be made.
#[test]
fn the_example_of_certificates_mounts_beside_the_configuration() {
    let values = read(&format!("{CHART}/values.yaml"));
    let example: String = values
        .lines()
        .filter_map(|line| line.strip_prefix("#   "))
        .map(|line| format!("{line}\n"))
        .collect();
    let example: Value = serde_yaml::from_str(&example).unwrap();
    let text = rendered(&example);
    let (is_valid, why) = validate(&text);
    assert!(is_valid, "{why}\n{text}");
    let mounts = &pod(&text)["spec"]["containers"][0]["volumeMounts"];
    let [config, tls] = [0, 1].map(|index| mounts[index]["mountPath"].as_str().unwrap());
    assert!(!Path::new(tls).starts_with(config), "{tls} lies in {config}");
    for file in ["certificate", "key"] {
        let file = example["config"]["tls"][file].as_str().unwrap();
        assert!(Path::new(file).starts_with(tls), "{file}");
    }
}

/// A reload does everything else, and stops no Keyward if the configuration is wrong.
#[test]
fn pods_restart_only_for_settings_that_need_it() {
    let annotation = |config: Value| {
        let text = rendered(&json!({ "config": config }));
        pod(&text)["metadata"]["annotations"]["keyward/needs-restart"].clone()
    };
    let before = annotation(json!({}));
    assert!(before.is_string(), "{before:?}");
    for reloaded in [
        json!({ "constraints": [] }),
        json!({ "log": { "level": "debug" } }),
        json!({ "drain": "10s", "sweep": "2m" }),
    ] {
        assert_eq!(annotation(reloaded.clone()), before, "{reloaded}");
    }
    for restarted in [
        json!({ "lease": "1m" }),
        json!({ "log": { "format": "text" } }),
        json!({ "traces": { "endpoint": "http://collector:4318/v1/traces" } }),
        json!({ "tls": { "certificate": "/etc/keyward-tls/tls.crt" } }),
    ] {
        assert_ne!(annotation(restarted.clone()), before, "{restarted}");
    }
}

/// The peers that a policy lets through to each port; `None` if it lets all through.
fn let_through(values: &Value) -> Vec<(String, Option<serde_yaml::Value>)> {
    let text = rendered(values);
    let (is_valid, why) = validate(&text);
    assert!(is_valid, "{why}\n{text}");
    let all = documents(&text);
    let spec = &of_kind(&all, "NetworkPolicy")["spec"];
    assert_eq!(
        spec["policyTypes"],
        serde_yaml::from_str::<serde_yaml::Value>("[Ingress]").unwrap()
    );
    assert_eq!(spec["podSelector"], of_kind(&all, "StatefulSet")["spec"]["selector"]);
    let ports = &pod(&text)["spec"]["containers"][0]["ports"];
    let rule = |rule: &serde_yaml::Value| {
        let port = rule["ports"][0]["port"].as_str().unwrap();
        let is_known = ports.as_sequence().unwrap().iter().any(|known| known["name"] == port);
        assert!(is_known, "{port}");
        (port.to_owned(), rule.get("from").cloned())
    };
    spec["ingress"].as_sequence().unwrap().iter().map(rule).collect()
}

#[test]
fn a_policy_keeps_others_from_the_admin_port() {
    let without = documents(&rendered(&json!({})));
    assert!(without.iter().all(|document| document["kind"] != "NetworkPolicy"));
    let open = file("NOTES.txt", &json!({}));
    assert!(
        open.contains("reaches their admin port (9216), which asks for no password"),
        "{open}"
    );

    let enabled = json!({ "networkPolicy": { "enabled": true } });
    let rules = let_through(&enabled);
    assert_eq!(rules[0], ("mongodb".to_owned(), None));
    assert_eq!(rules[1].0, "admin");
    let namespace = &rules[1].1.as_ref().unwrap()[0]["namespaceSelector"]["matchLabels"];
    assert_eq!(namespace["kubernetes.io/metadata.name"], "monitoring");
    let notes = file("NOTES.txt", &enabled);
    assert!(notes.contains("Only the peers in networkPolicy.adminFrom"), "{notes}");
    assert!(!notes.contains("asks for no password"), "{notes}");

    // An empty `from` would let every pod through.
    let alone = json!({ "networkPolicy": {
        "enabled": true, "adminFrom": [], "clientsFrom": [{ "podSelector": { "matchLabels": { "app": "shop" } } }],
    } });
    let rules = let_through(&alone);
    assert_eq!(rules.len(), 1, "{rules:?}");
    assert_eq!(
        rules[0].1.as_ref().unwrap()[0]["podSelector"]["matchLabels"]["app"],
        "shop"
    );
}

/// Whether the Prometheus operator's schema allows `monitor`, no field but its own; and if not, why.
fn held_against_schema(monitor: &serde_yaml::Value) -> Result<(), String> {
    let project = testbed::node_project(&repository().join("tests/operations/packaging/monitor")).unwrap();
    let monitor = serde_json::to_string(monitor).unwrap();
    let output = project.script("check.mjs").arg(monitor).output().unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn prometheus_scrapes_the_pods_under_the_job_that_the_alerts_select() {
    let values = json!({ "podMonitor": { "enabled": true, "labels": { "release": "monitoring" } } });
    let text = rendered(&values);
    let all = documents(&text);
    let monitor = of_kind(&all, "PodMonitor");
    assert_eq!(monitor["metadata"]["labels"]["release"], "monitoring");
    assert_eq!(held_against_schema(monitor), Ok(()));
    let mut other = monitor.clone();
    other["spec"]["podMetricsEndpoints"][0]["port"] = 9216.into();
    assert!(held_against_schema(&other).is_err(), "a port has a name");
    let mut other = monitor.clone();
    other["spec"]["jobLabels"] = "app".into();
    assert!(held_against_schema(&other).is_err(), "the check finds nothing");
    let pod = pod(&text);
    let labels = &pod["metadata"]["labels"];
    for (name, value) in monitor["spec"]["selector"]["matchLabels"].as_mapping().unwrap() {
        assert_eq!(&labels[name], value);
    }
    let job = labels[&monitor["spec"]["jobLabel"]].as_str().unwrap();
    let alerts = read("deploy/prometheus/alerts.yaml");
    let selected: BTreeSet<&str> = alerts
        .split("job=\"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap())
        .collect();
    assert_eq!(selected, BTreeSet::from([job]));
    let port = &monitor["spec"]["podMetricsEndpoints"][0]["port"];
    let ports = pod["spec"]["containers"][0]["ports"].as_sequence().unwrap();
    assert!(ports.iter().any(|known| &known["name"] == port), "{port:?}");
    let without = documents(&rendered(&json!({})));
    assert!(without.iter().all(|document| document["kind"] != "PodMonitor"));
}

#[test]
fn the_chart_is_of_this_version_and_every_value_is_used() {
    let chart: serde_yaml::Value = serde_yaml::from_str(&read(&format!("{CHART}/Chart.yaml"))).unwrap();
    assert_eq!(chart["apiVersion"], "v2");
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    let templates: String = std::fs::read_dir(repository().join(CHART).join("templates"))
        .unwrap()
        .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap())
        .collect();
    let values: serde_yaml::Value = serde_yaml::from_str(&read(&format!("{CHART}/values.yaml"))).unwrap();
    for name in values.as_mapping().unwrap().keys() {
        let name = name.as_str().unwrap();
        let is_used = templates.contains(&format!(".Values.{name}")) || templates.contains(&format!("\"{name}\""));
        assert!(is_used, "{name}");
    }
}
