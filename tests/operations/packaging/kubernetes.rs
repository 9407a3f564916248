//! The sidecar's manifest and the Helm chart: rendered, held against Kubernetes' own schemas, and their configuration against
//! Keyward's. Neither has been run on a cluster.

use std::path::Path;
use std::process::Command;

use gtmpl::{FuncError, Value};
use keyward::config::Config;
use serde::Deserialize;

use crate::packaging::{read, repository};

/// The validator, and the version of Kubernetes whose schemas it is asked for.
const VALIDATOR: &str = "kubernetes-validate==1.37.0";
const VERSION: &str = "1.33";
const CHART: &str = "deploy/helm/keyward";

fn documents(text: &str) -> Vec<serde_yaml::Value> {
    let documents = serde_yaml::Deserializer::from_str(text).map(serde_yaml::Value::deserialize);
    documents
        .map(Result::unwrap)
        .filter(|document| !document.is_null())
        .collect()
}

fn of_kind<'d>(documents: &'d [serde_yaml::Value], kind: &str) -> &'d serde_yaml::Value {
    let found = documents.iter().find(|document| document["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind}"))
}

/// Whether Kubernetes' schemas allow `text`, no field but theirs; and what stands against it.
fn validate(text: &str) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("manifest.yaml");
    std::fs::write(&file, text).unwrap();
    let python = testbed::python_with(VALIDATOR).unwrap();
    let mut validator = Command::new(python);
    validator.args(["-m", "kubernetes_validate", "--strict", "--kubernetes-version", VERSION]);
    let output = validator.arg(&file).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// The configuration in a ConfigMap, and how long the pod gives it to end.
fn assert_it_runs(documents: &[serde_yaml::Value]) {
    let text = of_kind(documents, "ConfigMap")["data"]["keyward.yaml"]
        .as_str()
        .unwrap();
    let config = Config::from_text(Path::new("keyward.yaml"), text, Some("mongodb://mongos/")).unwrap();
    assert!(!config.constraints.is_empty());
    let pod = &of_kind(documents, "Deployment")["spec"]["template"]["spec"];
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(
        grace > config.drain.as_secs(),
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
}

#[test]
fn the_sidecar_is_what_kubernetes_takes_and_runs_what_keyward_takes() {
    let text = read("deploy/kubernetes/sidecar.yaml");
    let (is_valid, why) = validate(&text);
    assert!(is_valid, "{why}");
    let (is_valid, _) = validate(&text.replace("periodSeconds: 2", "periodSeconds: often"));
    assert!(!is_valid, "the validator finds nothing");
    let documents = documents(&text);
    assert_it_runs(&documents);
    let pod = &of_kind(&documents, "Deployment")["spec"]["template"]["spec"];
    assert_eq!(pod["initContainers"][0]["restartPolicy"], "Always", "no native sidecar");
}

fn to_yaml(arguments: &[Value]) -> Result<Value, FuncError> {
    let yaml = serde_yaml::to_string(&plain(&arguments[0])).unwrap();
    Ok(Value::from(yaml.trim_end()))
}

fn plain(value: &Value) -> serde_json::Value {
    match value {
        Value::Object(fields) | Value::Map(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), plain(value)))
            .collect(),
        Value::Array(items) => items.iter().map(plain).collect(),
        Value::String(text) => text.clone().into(),
        Value::Bool(bool) => (*bool).into(),
        Value::Number(number) => number.as_i64().map_or_else(|| number.as_f64().into(), Into::into),
        other => panic!("{other:?}"),
    }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => panic!("{other:?} is no text"),
    }
}

fn nindent(arguments: &[Value]) -> Result<Value, FuncError> {
    let Value::Number(width) = &arguments[0] else {
        panic!("no width")
    };
    let margin = " ".repeat(usize::try_from(width.as_i64().unwrap()).unwrap());
    let lines = text_of(&arguments[1]);
    Ok(Value::from(
        lines
            .lines()
            .map(|line| format!("\n{margin}{line}"))
            .collect::<String>(),
    ))
}

fn quote(arguments: &[Value]) -> Result<Value, FuncError> {
    Ok(Value::from(format!("{:?}", text_of(&arguments[0]))))
}

fn value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Object(fields) => {
            Value::Object(fields.iter().map(|(name, json)| (name.clone(), value(json))).collect())
        }
        serde_json::Value::Array(items) => Value::Array(items.iter().map(value).collect()),
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Bool(bool) => Value::from(*bool),
        serde_json::Value::Number(number) => match number.as_i64() {
            Some(whole) => Value::from(whole),
            None => Value::from(number.as_f64().unwrap()),
        },
        serde_json::Value::Null => Value::Nil,
    }
}

/// The chart's templates with its values, changed by `change`.
fn rendered(change: impl Fn(&mut serde_json::Value)) -> String {
    let mut values: serde_json::Value = serde_yaml::from_str(&read(&format!("{CHART}/values.yaml"))).unwrap();
    change(&mut values);
    let context = serde_json::json!({ "Values": values, "Release": { "Name": "shop", "Namespace": "default" } });
    let mut template = gtmpl::Template::default();
    template.add_func("toYaml", to_yaml);
    template.add_func("nindent", nindent);
    template.add_func("quote", quote);
    template
        .parse(read(&format!("{CHART}/templates/keyward.yaml")))
        .unwrap();
    template.render(&gtmpl::Context::from(value(&context))).unwrap()
}

#[test]
fn the_chart_renders_to_what_kubernetes_takes() {
    let text = rendered(|_| ());
    let (is_valid, why) = validate(&text);
    assert!(is_valid, "{why}\n{text}");
    assert_it_runs(&documents(&text));
    let deployment = documents(&text);
    assert_eq!(of_kind(&deployment, "Deployment")["spec"]["replicas"], 2);
}

#[test]
fn what_the_values_say_comes_out() {
    let text = rendered(|values| {
        values["podMonitor"] = true.into();
        values["config"]["constraints"] =
            serde_json::json!([{ "collection": "a.b", "key": { "x": 1, "y": -1 }, "sparse": true }]);
    });
    let documents = documents(&text);
    of_kind(&documents, "PodMonitor");
    let config = of_kind(&documents, "ConfigMap")["data"]["keyward.yaml"]
        .as_str()
        .unwrap();
    let config = Config::from_text(Path::new("keyward.yaml"), config, Some("mongodb://mongos/")).unwrap();
    assert_eq!(
        config.constraints[0].proxy_collection().to_string(),
        "a.keyward.b.x_1_y_-1"
    );
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
        let used = format!(".Values.{}", name.as_str().unwrap());
        assert!(templates.contains(&used), "{used}");
    }
}
