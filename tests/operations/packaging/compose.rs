//! The Dockerfile and docker-compose.yml, as far as they can be checked without a Docker engine: that they are
//! well-formed, and that everything they name is there and fits together.

use std::net::SocketAddr;
use std::path::Path;

use keyward::config::Config;
use serde_yaml::Value;

use crate::packaging::{read, repository};

fn yaml(path: &str) -> Value {
    let mut value: Value = serde_yaml::from_str(&read(path)).unwrap();
    value.apply_merge().unwrap();
    value
}

/// The services of docker-compose.yml by name.
fn services() -> Vec<(String, Value)> {
    let compose = yaml("docker-compose.yml");
    let services = compose["services"].as_mapping().unwrap().clone();
    services
        .into_iter()
        .map(|(name, service)| (name.as_str().unwrap().to_owned(), service))
        .collect()
}

fn service(name: &str) -> Value {
    let found = services().into_iter().find(|(service, _)| service == name);
    found.unwrap_or_else(|| panic!("no service {name}")).1
}

/// The texts of a list, none if it isn't there.
fn texts(list: &Value) -> Vec<String> {
    let items = list.as_sequence().cloned().unwrap_or_default();
    items.iter().map(|item| item.as_str().unwrap().to_owned()).collect()
}

fn names(mapping: &Value) -> Vec<String> {
    let mapping = mapping.as_mapping().cloned().unwrap_or_default();
    mapping.keys().map(|name| name.as_str().unwrap().to_owned()).collect()
}

#[test]
fn services_depend_on_services_that_can_meet_the_condition() {
    for (name, depending) in services() {
        let depends_on = &depending["depends_on"];
        for needed in names(depends_on) {
            let condition = depends_on[&needed]["condition"].as_str().unwrap();
            let needed = service(&needed);
            match condition {
                "service_healthy" => assert!(needed["healthcheck"].is_mapping(), "{name}"),
                "service_completed_successfully" => assert!(needed["restart"].is_null(), "{name}"),
                "service_started" => {}
                other => panic!("{name}: unknown condition {other}"),
            }
        }
    }
}

#[test]
fn dependencies_have_an_order() {
    let mut started: Vec<String> = Vec::new();
    let all = services();
    while started.len() < all.len() {
        let before = started.len();
        for (name, service) in &all {
            let ready = names(&service["depends_on"])
                .iter()
                .all(|needed| started.contains(needed));
            if ready && !started.contains(name) {
                started.push(name.clone());
            }
        }
        assert!(started.len() > before, "in a circle, or not there: all but {started:?}");
    }
}

#[test]
fn networks_and_volumes_are_declared_and_mounted_files_exist() {
    let compose = yaml("docker-compose.yml");
    for (name, service) in services() {
        for network in texts(&service["networks"]) {
            assert!(names(&compose["networks"]).contains(&network), "{name}: {network}");
        }
        for mount in texts(&service["volumes"]) {
            let (source, target) = mount.split_once(':').unwrap();
            assert!(target.starts_with('/'), "{name}: {mount}");
            match source.strip_prefix("./") {
                Some(file) => assert!(repository().join(file).is_file(), "{name}: {file}"),
                None => assert!(
                    names(&compose["volumes"]).contains(&source.to_owned()),
                    "{name}: {source}"
                ),
            }
        }
    }
}

#[test]
fn published_ports_are_on_the_loopback_interface_and_no_two_are_the_same() {
    let ports: Vec<String> = services()
        .iter()
        .flat_map(|(_, service)| texts(&service["ports"]))
        .collect();
    assert!(!ports.is_empty());
    let mut published = Vec::new();
    for port in &ports {
        let (address, inside) = port.rsplit_once(':').unwrap();
        inside.parse::<u16>().unwrap();
        let address: SocketAddr = address.parse().unwrap();
        assert!(address.ip().is_loopback(), "{port}");
        assert!(!published.contains(&address), "{port}");
        published.push(address);
    }
}

#[test]
fn keyward_finds_what_its_configuration_names() {
    let keyward = service("keyward");
    let file = "deploy/compose/keyward.yaml";
    let config = Config::from_text(Path::new(file), &read(file), None).unwrap();
    for host in config.upstream.hosts() {
        assert_eq!(names(&keyward["depends_on"]), ["shards"]);
        assert!(service(&host.name)["command"].is_sequence(), "{host}");
    }
    let inside = |address: SocketAddr| {
        texts(&keyward["ports"])
            .iter()
            .any(|port| port.ends_with(&format!(":{}", address.port())))
    };
    for address in [config.listen, config.admin] {
        assert!(address.ip().is_unspecified() && inside(address), "{address}");
    }
    let grace = humantime::parse_duration(keyward["stop_grace_period"].as_str().unwrap()).unwrap();
    assert!(grace > config.drain, "Docker would end it before it has drained");
}

#[test]
fn the_image_runs_the_mounted_configuration_as_nobody() {
    let dockerfile = read("Dockerfile");
    let file = texts(&service("keyward")["volumes"])[0]
        .split(':')
        .nth(1)
        .unwrap()
        .to_owned();
    assert!(
        dockerfile.contains(&format!("CMD [\"run\", \"--config\", \"{file}\"]")),
        "{file}"
    );
    assert!(dockerfile.contains("ENTRYPOINT [\"/usr/local/bin/keyward\"]"));
    assert!(dockerfile.contains("\nUSER 65532:65532\n"));
    // An empty image has no libraries.
    assert!(dockerfile.contains("\nFROM scratch\n") && dockerfile.contains("target-feature=+crt-static"));
}

#[test]
fn prometheus_reads_the_admin_port() {
    let targets = yaml("deploy/compose/prometheus.yml");
    let targets = &targets["scrape_configs"][0]["static_configs"][0]["targets"];
    assert_eq!(texts(targets), ["keyward:9216"]);
}

#[test]
fn every_image_but_keywards_own_has_a_version() {
    for (name, service) in services() {
        match service["image"].as_str() {
            Some(image) => assert!(
                image.split_once(':').is_some_and(|(_, tag)| tag != "latest"),
                "{name}: {image}"
            ),
            None => assert!(service["build"].is_string(), "{name}"),
        }
    }
}

#[test]
fn the_compose_file_says_that_it_has_not_been_run() {
    assert!(read("docker-compose.yml").contains("no container of it has been run"));
}
