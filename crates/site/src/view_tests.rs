use super::*;

/// A site on which time passes.
struct Site {
    view: SiteView,
    now: Instant,
}

fn address(host: &str) -> HttpAddress {
    format!("https://{host}:8443").parse().unwrap()
}

fn status(host: &str, volumes: &[(&str, HostRole, bool)]) -> HostStatus {
    let volumes = volumes.iter().map(|&(name, role, shared)| HostVolume {
        name: name.to_owned(),
        role,
        shared,
        ..HostVolume::default()
    });
    HostStatus { host: host.to_owned(), volumes: volumes.collect(), ..HostStatus::default() }
}

impl Site {
    fn new(hosts: &[&str]) -> Self {
        let now = Instant::now();
        let mut view = SiteView::new(now);
        view.set_hosts(&hosts.iter().map(|host| address(host)).collect(), Vec::new(), now);
        Self { view, now }
    }

    /// What the hosts answer `seconds` later; those that are not named are silent.
    fn after(&mut self, seconds: u64, heard: &[HostStatus]) -> SiteStatus {
        self.now += Duration::from_secs(seconds);
        for address in self.view.hosts.keys().cloned().collect::<Vec<_>>() {
            let answer = heard.iter().find(|status| status.host == address.host).cloned();
            let answer = answer.ok_or_else(|| "cannot be reached".to_owned());
            self.view.hear(&address, answer, self.now);
        }
        self.view.judge(self.now);
        self.view.status(self.now)
    }
}

impl Site {
    fn names(&self) -> impl Iterator<Item = String> {
        self.view.status(self.now).hosts.into_iter().map(|host| host.name)
    }
}

fn texts(status: &SiteStatus) -> Vec<String> {
    let shown = status.alerts.iter().map(|alert| {
        let (kind, name) = (&alert.kind, alert.name.as_deref().unwrap_or_default());
        format!("{kind} {name}: {}; {}", alert.text, alert.remedy.as_deref().unwrap_or("-"))
    });
    shown.collect()
}

use HostRole::{Missing, Serves, Standby, TakenOver};

#[test]
fn a_shared_volume_is_one_and_volumes_of_hosts_are_many() {
    let mut site = Site::new(&["a", "b"]);
    let found = site.after(
        0,
        &[
            status("a", &[("vm", Standby, true), ("scratch", Serves, false)]),
            status("b", &[("vm", Serves, true), ("scratch", Serves, false)]),
        ],
    );
    let shown: Vec<_> = found
        .volumes
        .iter()
        .map(|it| (&*it.volume.name, &*it.hosts[0].host, it.hosts.len()))
        .collect();
    assert_eq!(shown, [("scratch", "a", 1), ("scratch", "b", 1), ("vm", "b", 2)]);
    assert!(found.volumes.iter().all(|volume| volume.unserved_seconds.is_none()));
    assert_eq!(found.alerts, []);
}

#[test]
fn a_volume_without_an_owner_is_said_after_a_while() {
    let mut site = Site::new(&["a", "b"]);
    let nobody = [status("a", &[("vm", Standby, true)]), status("b", &[("vm", TakenOver, true)])];
    assert_eq!(texts(&site.after(0, &nobody)), [""; 0]);
    let soon = site.after(14, &nobody);
    assert_eq!((soon.alerts.len(), soon.volumes[0].unserved_seconds), (0, Some(14)));
    let late = site.after(1, &nobody);
    assert_eq!(
        texts(&late),
        ["volume vm: no host has served it for 15 s; on standby on a; was taken over from b; run \
          `forebay takeover vm` on a"]
    );
    assert!(late.alerts[0].of_site && late.alerts[0].severity == Severity::Error);
    // A takeover ends it, and the next time begins anew.
    let one = [status("a", &[("vm", Serves, true)]), status("b", &[("vm", TakenOver, true)])];
    assert_eq!(texts(&site.after(5, &one)), [""; 0]);
    assert_eq!(texts(&site.after(5, &nobody)), [""; 0]);
}

#[test]
fn a_silent_owner_is_told_from_a_volume_that_nobody_has() {
    let mut site = Site::new(&["a", "b", "c"]);
    let (a, b) = (status("a", &[("vm", Serves, true)]), status("b", &[("vm", Standby, true)]));
    let c = status("c", &[("scratch", Serves, false)]);
    site.after(0, &[a.clone(), b.clone(), c.clone()]);
    assert_eq!(texts(&site.after(5, &[b.clone(), c.clone()])), [""; 0]);
    let found = site.after(15, &[b.clone(), c.clone()]);
    assert_eq!(
        texts(&found),
        [
            "volume vm: its host a has not answered for 15 s; on standby on b; if a is down, run \
             `forebay takeover vm` on b",
            "host a: has not answered for 15 s: cannot be reached; nobody else serves its volume; \
             check the machine, and the dashboard at https://a:8443",
        ]
    );
    // Once the other host serves it, the silent one is a warning, for it is not needed.
    let b = status("b", &[("vm", Serves, true)]);
    let found = site.after(5, &[b.clone(), c]);
    assert_eq!(found.alerts.len(), 1);
    assert_eq!((found.alerts[0].severity, &*found.alerts[0].kind), (Severity::Warning, "host"));
    let vm = found.volumes.iter().find(|it| it.volume.name == "vm").unwrap();
    assert_eq!((&*vm.hosts[0].host, vm.hosts[0].answers), ("b", true), "not the silent one");
    // A volume of one host is lost with it.
    site.after(5, std::slice::from_ref(&b));
    let found = site.after(15, &[b]);
    let c = found.alerts.iter().find(|alert| alert.name.as_deref() == Some("c")).unwrap();
    assert_eq!(c.severity, Severity::Error);
    assert!(found.volumes[0].unserved_seconds.is_some());
}

#[test]
fn two_owners_are_an_error_unless_it_was_a_moment() {
    let mut site = Site::new(&["a", "b"]);
    let both = [status("a", &[("vm", Serves, true)]), status("b", &[("vm", Serves, true)])];
    let local = [status("a", &[("vm", Serves, false)]), status("b", &[("vm", Serves, true)])];
    site.after(0, &both);
    assert_eq!(texts(&site.after(10, &local)), [""; 0]);
    assert_eq!(texts(&site.after(10, &both)), [""; 0]);
    let found = texts(&site.after(15, &both));
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("volume vm: a and b say that they serve it"), "{found:?}");
}

#[test]
fn a_volume_that_no_host_can_open_names_where_it_is_tried() {
    let mut site = Site::new(&["a"]);
    let heard = [status("a", &[("vm", Missing, true), ("scratch", Missing, false)])];
    site.after(0, &heard);
    let found = texts(&site.after(20, &heard));
    // What one host says of its own volume is its own alert.
    assert_eq!(
        found,
        ["volume vm: no host has served it for 20 s; tried again on a; see `forebay status` on \
          these hosts"]
    );
}

#[test]
fn hosts_have_different_names() {
    let mut site = Site::new(&["a", "b"]);
    for host in ["a", "b"] {
        let same = HostStatus { host: "nas".to_owned(), ..HostStatus::default() };
        site.view.hear(&address(host), Ok(same), site.now);
    }
    assert!(site.names().eq(["a:8443".to_owned(), "b:8443".to_owned()]));
    let other = HostStatus { host: "nas2".to_owned(), ..HostStatus::default() };
    site.view.hear(&address("b"), Ok(other), site.now);
    assert!(site.names().eq(["nas".to_owned(), "nas2".to_owned()]));
}

#[test]
fn hosts_that_are_named_no_more_are_forgotten_and_unknown_sources_said() {
    let mut site = Site::new(&["a", "b"]);
    site.after(0, &[status("a", &[("vm", Serves, true)]), status("b", &[])]);
    let problems = vec!["the hosts that srv:x names are not known: no answer".to_owned()];
    let hosts = BTreeSet::from([address("b")]);
    site.view.set_hosts(&hosts, problems, site.now);
    let found = site.after(20, &[status("a", &[("vm", Serves, true)]), status("b", &[])]);
    assert_eq!((found.hosts.len(), found.volumes.len()), (2, 1), "a may still be one");
    assert_eq!(texts(&found), ["site : the hosts that srv:x names are not known: no answer; -"]);
    site.view.set_hosts(&hosts, Vec::new(), site.now);
    let found = site.after(20, &[status("b", &[])]);
    assert_eq!((found.hosts.len(), found.volumes.len(), found.alerts.len()), (1, 0, 0));
}
