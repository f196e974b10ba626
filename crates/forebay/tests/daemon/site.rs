//! A site as one of its hosts sees it. All hosts are on this machine.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::etcd::Etcd;
use crate::process::{Daemon, MIB, make_file, on_one_line, output_of};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const TOKEN: &str = "0123456789-of-all-hosts";

/// A host, with a dashboard at a port of the system's choice.
struct Host {
    directory: tempfile::TempDir,
    daemon: Daemon,
}

impl Host {
    /// A host that serves these lines of a configuration.
    fn start(volumes: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let tokens = directory.path().join("tokens");
        std::fs::write(&tokens, format!("look {TOKEN}\n")).unwrap();
        std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o600)).unwrap();
        let file = configure(directory.path(), "", volumes).display().to_string();
        let arguments = ["--config", &file, "--dashboard", "127.0.0.1:0"];
        let tokens = ["--dashboard-tokens", tokens.to_str().unwrap()];
        let arguments = [&arguments[..], &tokens].concat();
        let daemon = Daemon::start_with(directory.path(), "auto", "64MiB", &[], &arguments);
        Self { directory, daemon }
    }

    /// The address of the dashboard.
    fn address(&self) -> String {
        let link = self.directory.path().join("state/dashboard.url");
        std::fs::read_to_string(link).unwrap().trim().trim_end_matches('/').to_owned()
    }

    /// The same, as the site names a host.
    fn name(&self) -> String {
        self.address().strip_prefix("http://").unwrap().to_owned()
    }

    /// Has the host watch a site.
    fn watch(&self, site: &str, volumes: &str) {
        configure(self.directory.path(), site, volumes);
        assert_eq!(self.daemon.run(&["reload"]).0, Some(0), "{}", self.daemon.log_so_far());
    }

    fn site(&self) -> serde_json::Value {
        let (code, text) = self.daemon.run(&["status", "--site", "--json"]);
        assert_eq!(code, Some(0), "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// The volume of the site with this name.
    fn volume(&self, name: &str) -> serde_json::Value {
        let site = self.site();
        let volumes = site["volumes"].as_array().unwrap();
        volumes.iter().find(|it| it["volume"]["name"] == name).cloned().unwrap_or_default()
    }
}

fn configure(directory: &Path, site: &str, volumes: &str) -> PathBuf {
    let file = directory.join("forebay.toml");
    std::fs::write(&file, format!("{site}\n{volumes}")).unwrap();
    file
}

/// A volume whose disk remembers its owners.
fn shared(directory: &Path, standby: bool) -> String {
    let there = directory.display();
    format!(
        "[[volume]]\nname = 'vm'\nbacking = 'owned(record={there}/owners):{there}/disk.img'\n\
         standby = {standby}\n"
    )
}

#[test]
fn a_volume_whose_host_dies_is_seen_without_an_owner_until_another_host_takes_it_over() {
    let disk = tempfile::tempdir().unwrap();
    make_file(disk.path().join("disk.img"), 4 * MIB);
    let first = Host::start(&shared(disk.path(), false));
    let volumes = shared(disk.path(), true);
    let second = Host::start(&volumes);
    let (code, text) = second.daemon.run(&["status", "--site"]);
    assert!(code == Some(1) && text.contains("this server watches no site"), "{text}");
    let hosts = format!("site = ['{}', '{}']", first.address(), second.address());
    second.watch(&hosts, &volumes);
    wait_until("both hosts answer", PATIENCE, || {
        second.volume("vm")["hosts"][1] != serde_json::Value::Null
    });
    let volume = second.volume("vm");
    assert_eq!(volume["hosts"][0]["host"], first.name(), "{volume}");
    assert_eq!(
        (&volume["hosts"][0]["role"], &volume["hosts"][1]["role"]),
        (&"serves".into(), &"standby".into())
    );
    let standby = format!("{} (standby)", second.name());
    wait_until("all is well", PATIENCE, || {
        let (_, text) = second.daemon.run(&["status", "--all", "--site"]);
        text.contains("2 hosts answer, 1 volume, all served") && text.contains(&standby)
    });
    let name = first.name();
    let _directory = first.directory;
    first.daemon.kill();
    wait_until("nobody serves the volume", PATIENCE, || {
        second.volume("vm")["unserved_seconds"].is_u64()
    });
    let said = format!("volume vm: its host {name} has not answered for");
    wait_until("the server says it", PATIENCE, || {
        on_one_line(&second.daemon.run(&["status"]).1).contains(&said)
    });
    let (code, text) = second.daemon.run(&["status", "--check"]);
    let text = on_one_line(&text);
    assert!(code == Some(4), "{text}");
    let remedy = format!("if {name} is down, run `forebay takeover vm` on {}", second.name());
    assert!(text.contains(&remedy), "{text}");
    assert!(text.contains(&format!("host {name}: has not answered for")), "{text}");
    assert_eq!(second.daemon.run(&["takeover", "vm"]).0, Some(0));
    wait_until("the volume is served", PATIENCE, || {
        second.volume("vm")["unserved_seconds"].is_null()
    });
    assert_eq!(second.volume("vm")["hosts"][0]["host"], second.name());
    let status = second.daemon.status();
    assert_eq!(
        status["site"],
        serde_json::json!({ "hosts": 2, "answering": 1, "volumes": 1, "unserved": 0 })
    );
    second.daemon.stop();
}

#[test]
fn a_host_that_cannot_be_asked_says_why_and_a_reload_ends_the_watch() {
    let host = Host::start("");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let other = Host::start("");
    std::fs::write(other.directory.path().join("tokens"), "look 0123456789-of-another-site\n")
        .unwrap();
    assert_eq!(other.daemon.run(&["reload"]).0, Some(0));
    host.watch(&format!("site = ['http://{closed}', '{}']", other.address()), "");
    let problem =
        |at: usize| host.site()["hosts"][at]["problem"].as_str().unwrap_or_default().to_owned();
    wait_until("both have failed", PATIENCE, || !problem(0).is_empty() && !problem(1).is_empty());
    let problems = [problem(0), problem(1)].concat();
    assert!(problems.contains("the token is not valid"), "{problems}");
    assert!(problems.contains("cannot be reached: Connection refused"), "{problems}");
    configure(host.directory.path(), "site = ['nowhere']", "");
    let (code, text) = host.daemon.run(&["reload"]);
    assert!(code == Some(1) && text.contains("host of the site \"nowhere\""), "{text}");
    assert_eq!(host.site()["hosts"].as_array().unwrap().len(), 2, "as before");
    host.watch("", "");
    assert_eq!(host.daemon.run(&["status", "--site"]).0, Some(1));
    assert!(host.daemon.status()["site"].is_null());
    host.daemon.stop();
    other.daemon.stop();
}

#[test]
fn hosts_are_asked_over_tls_with_the_authority_of_the_site() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    for name in ["host", "other"] {
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(at(&format!("{name}.pem")), pair.cert.pem()).unwrap();
        std::fs::write(at(&format!("{name}.key")), pair.signing_key.serialize_pem()).unwrap();
    }
    std::fs::write(at("tokens"), format!("operate {TOKEN}-operate\nlook {TOKEN}\n")).unwrap();
    std::fs::set_permissions(at("tokens"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let settings = format!(
        "dashboard = '0.0.0.0:0'\ndashboard-tokens = '{}'\ntls = 'selective'\n\
         tls-cert = '{}'\ntls-key = '{}'\n",
        at("tokens"),
        at("host.pem"),
        at("host.key")
    );
    let file = configure(directory.path(), &settings, "").display().to_string();
    let arguments = ["--config", &file];
    let daemon = Daemon::start_with(directory.path(), "auto", "64MiB", &[], &arguments);
    let link = std::fs::read_to_string(directory.path().join("state/dashboard.url")).unwrap();
    let port = link.trim().trim_end_matches('/').rsplit_once(':').unwrap().1.to_owned();
    let site = |authority: &str| {
        let site = format!("site = ['https://localhost:{port}']\nsite-ca = '{authority}'");
        configure(directory.path(), &site, &settings);
        assert_eq!(daemon.run(&["reload"]).0, Some(0), "{}", daemon.log_so_far());
    };
    let host = || -> serde_json::Value {
        let text = daemon.run(&["status", "--site", "--json"]).1;
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["hosts"][0].clone()
    };
    site(&at("other.pem"));
    wait_until("it is refused", PATIENCE, || host()["problem"].to_string().contains("certificate"));
    site(&at("host.pem"));
    wait_until("it answers", PATIENCE, || host()["answers"] == true);
    daemon.stop();
}

#[test]
fn hosts_are_found_in_etcd_and_stay_known_while_it_is_away() {
    let Some(etcd) = Etcd::start() else { return };
    let host = Host::start("");
    for (key, value) in [("forebay/hosts/1", &*host.address()), ("forebay/other", "nothing")] {
        let mut put = etcd.command();
        assert!(output_of(put.args(["put", key, value])).status.success());
    }
    let site = format!("site = ['etcd:{}/forebay/hosts/']", etcd.endpoint);
    let file = host.directory.path().join("forebay.toml");
    configure(host.directory.path(), &site, "");
    let (code, text) = host.daemon.run(&["reload"]);
    assert!(code == Some(1) && text.contains("site-ca"), "any host would get the token: {text}");
    let ca = host.directory.path().join("ca.pem");
    let authority = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap();
    std::fs::write(&ca, authority.cert.pem()).unwrap();
    std::fs::write(&file, format!("{site}\nsite-ca = '{}'\n", ca.display())).unwrap();
    assert_eq!(host.daemon.run(&["reload"]).0, Some(0));
    wait_until("the host is found", PATIENCE, || host.site()["hosts"][0]["answers"] == true);
    drop(etcd);
    // A reload asks it anew, and keeps what is known.
    assert_eq!(host.daemon.run(&["reload"]).0, Some(0));
    wait_until("that it is away is said", PATIENCE, || {
        host.site()["alerts"].to_string().contains("names are known: cannot be reached")
    });
    assert_eq!(host.site()["hosts"][0]["answers"], true);
    host.daemon.stop();
}
