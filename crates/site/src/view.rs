//! What is known of the site: the last answers of its hosts, and what follows from them.

use forebay_api::{
    Alert, HostRole, HostStatus, HostVolume, Severity, SiteHost, SiteRole, SiteStatus, SiteVolume,
};
use forebay_config::HttpAddress;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// How long something must be wrong before it is said. A takeover or a restart takes less.
const PATIENCE: Duration = Duration::from_secs(15);

/// A host, and what it has said.
#[derive(Clone, Debug)]
struct WatchedHost {
    /// Whether it answers; `None` until it was asked.
    answers: Option<bool>,
    /// Since when that is so.
    since: Instant,
    /// Why it has not answered.
    problem: Option<String>,
    last: Option<HostStatus>,
}

/// The site. Every time is one of the caller's.
#[derive(Clone, Debug)]
pub(crate) struct SiteView {
    hosts: BTreeMap<HttpAddress, WatchedHost>,
    /// What keeps hosts from being known.
    problems: Vec<String>,
    problems_since: Instant,
    /// Since when no host that answers serves a shared volume.
    unserved: HashMap<String, Instant>,
    /// Since when several hosts serve a shared volume.
    doubled: HashMap<String, Instant>,
}

impl SiteView {
    /// No host yet.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            hosts: BTreeMap::new(),
            problems: Vec::new(),
            problems_since: now,
            unserved: HashMap::new(),
            doubled: HashMap::new(),
        }
    }

    /// Sets which hosts there are, and why some may be missing; then those that are known already
    /// stay. Returns the hosts.
    pub(crate) fn set_hosts(
        &mut self,
        hosts: &BTreeSet<HttpAddress>,
        problems: Vec<String>,
        now: Instant,
    ) -> BTreeSet<HttpAddress> {
        if problems.is_empty() {
            self.hosts.retain(|address, _| hosts.contains(address));
        }
        for address in hosts {
            let unknown = WatchedHost { answers: None, since: now, problem: None, last: None };
            self.hosts.entry(address.clone()).or_insert(unknown);
        }
        if self.problems.is_empty() {
            self.problems_since = now;
        }
        self.problems = problems;
        self.hosts.keys().cloned().collect()
    }

    /// Takes the answer of a host, or why it has none.
    pub(crate) fn hear(
        &mut self,
        address: &HttpAddress,
        heard: Result<HostStatus, String>,
        now: Instant,
    ) {
        let Some(host) = self.hosts.get_mut(address) else { return };
        if host.answers != Some(heard.is_ok()) {
            (host.answers, host.since) = (Some(heard.is_ok()), now);
        }
        match heard {
            Ok(status) => (host.last, host.problem) = (Some(status), None),
            Err(problem) => host.problem = Some(problem),
        }
    }

    /// Notes since when volumes have no owner, or two, once all hosts were asked.
    pub(crate) fn judge(&mut self, now: Instant) {
        let mut owners: HashMap<&str, usize> = HashMap::new();
        for host in self.hosts.values() {
            for volume in host.volumes().filter(|volume| volume.shared) {
                let serves = host.answers == Some(true) && volume.role == HostRole::Serves;
                *owners.entry(&volume.name).or_default() += usize::from(serves);
            }
        }
        let (mut unserved, mut doubled) = (HashMap::new(), HashMap::new());
        for (name, count) in owners {
            let (former, found) = match count {
                0 => (&self.unserved, &mut unserved),
                1 => continue,
                _ => (&self.doubled, &mut doubled),
            };
            found.insert(name.to_owned(), *former.get(name).unwrap_or(&now));
        }
        (self.unserved, self.doubled) = (unserved, doubled);
    }

    /// The site.
    pub(crate) fn status(&self, now: Instant) -> SiteStatus {
        let hosts = self.site_hosts(now);
        let volumes = self.site_volumes(&hosts, now);
        let mut alerts = self.alerts(&hosts, &volumes, now);
        alerts.sort_by_key(|alert| alert.severity);
        SiteStatus { hosts, volumes, alerts }
    }

    fn site_hosts(&self, now: Instant) -> Vec<SiteHost> {
        let mut named: HashMap<&str, usize> = HashMap::new();
        let machines = self.hosts.values().filter_map(|host| Some(&*host.last.as_ref()?.host));
        machines.for_each(|machine| *named.entry(machine).or_default() += 1);
        let mut hosts: Vec<_> = self
            .hosts
            .iter()
            .map(|(address, host)| {
                let machine = host.last.as_ref().map(|status| &*status.host);
                // Two servers of one machine, or two machines with one name.
                let machine = machine.filter(|name| !name.is_empty() && named[name] == 1);
                SiteHost {
                    name: machine.map_or_else(|| address.authority(), str::to_owned),
                    address: address.to_string(),
                    answers: host.answers == Some(true),
                    seconds: since(host.since, now).as_secs(),
                    problem: host.problem.clone(),
                    status: host.last.clone(),
                }
            })
            .collect();
        hosts.sort_by(|a, b| a.name.cmp(&b.name));
        hosts
    }

    fn site_volumes(&self, hosts: &[SiteHost], now: Instant) -> Vec<SiteVolume> {
        // Shared volumes by name, others by name and host.
        let mut found: BTreeMap<(&str, &str), Vec<(&SiteHost, &HostVolume)>> = BTreeMap::new();
        for host in hosts {
            for volume in host.status.iter().flat_map(|status| &status.volumes) {
                let place = if volume.shared { "" } else { &*host.name };
                found.entry((&volume.name, place)).or_default().push((host, volume));
            }
        }
        let volumes = found.into_iter().map(|((name, place), mut known)| {
            // Those that serve it first, and among them those that answer.
            known.sort_by_key(|(host, volume)| (volume.role != HostRole::Serves, !host.answers));
            let (host, volume) = known[0];
            let unserved_seconds = match place {
                "" => self.unserved.get(name).map(|begun| since(*begun, now).as_secs()),
                _ => (!host.answers).then_some(host.seconds),
            };
            let roles = known.iter().map(|(host, volume)| SiteRole {
                host: host.name.clone(),
                role: volume.role,
                answers: host.answers,
            });
            SiteVolume { volume: volume.clone(), hosts: roles.collect(), unserved_seconds }
        });
        volumes.collect()
    }

    fn alerts(&self, hosts: &[SiteHost], volumes: &[SiteVolume], now: Instant) -> Vec<Alert> {
        let mut alerts = Vec::new();
        for volume in volumes.iter().filter(|volume| volume.volume.shared) {
            let name = &volume.volume.name;
            let begun = self.unserved.get(name).filter(|begun| is_old(**begun, now));
            if let Some(begun) = begun {
                alerts.push(unserved(volume, since(*begun, now)));
            }
            if self.doubled.get(name).is_some_and(|begun| is_old(*begun, now)) {
                alerts.push(doubled(volume));
            }
        }
        let silent =
            hosts.iter().filter(|host| !host.answers && host.seconds >= PATIENCE.as_secs());
        alerts.extend(silent.map(|host| unheard(host, volumes)));
        if is_old(self.problems_since, now) {
            let problems = self.problems.iter();
            alerts.extend(problems.map(|text| Alert::new(Severity::Warning, "site", "", text)));
        }
        alerts.into_iter().map(Alert::of_site).collect()
    }
}

impl WatchedHost {
    fn volumes(&self) -> impl Iterator<Item = &HostVolume> {
        self.last.iter().flat_map(|status| &status.volumes)
    }
}

fn since(begun: Instant, now: Instant) -> Duration {
    now.saturating_duration_since(begun)
}

fn is_old(begun: Instant, now: Instant) -> bool {
    since(begun, now) >= PATIENCE
}

/// The hosts with a role for a volume, of those that answer.
fn hosts_in(volume: &SiteVolume, role: HostRole) -> Vec<&str> {
    let hosts = volume.hosts.iter().filter(|host| host.answers && host.role == role);
    hosts.map(|host| &*host.host).collect()
}

/// The alert for a shared volume that no host serves.
fn unserved(volume: &SiteVolume, time: Duration) -> Alert {
    let name = &*volume.volume.name;
    let owner = volume.hosts.iter().find(|host| !host.answers && host.role == HostRole::Serves);
    let seconds = time.as_secs();
    let mut text = match owner {
        Some(owner) => format!("its host {} has not answered for {seconds} s", owner.host),
        None => format!("no host has served it for {seconds} s"),
    };
    let words = [
        (HostRole::Standby, "on standby on"),
        (HostRole::TakenOver, "was taken over from"),
        (HostRole::Missing, "tried again on"),
    ];
    for (role, words) in words {
        let hosts = hosts_in(volume, role);
        if !hosts.is_empty() {
            text += &format!("; {words} {}", hosts.join(", "));
        }
    }
    let heir = hosts_in(volume, HostRole::Standby).first().copied();
    let remedy = match (owner, heir) {
        (Some(owner), Some(heir)) => {
            format!("if {} is down, run `forebay takeover {name}` on {heir}", owner.host)
        }
        (None, Some(heir)) => format!("run `forebay takeover {name}` on {heir}"),
        (Some(owner), None) => format!("bring {} back, or add the volume on another", owner.host),
        (None, None) => "see `forebay status` on these hosts".to_owned(),
    };
    Alert::new(Severity::Error, "volume", name, text).with_remedy(remedy)
}

/// The alert for a shared volume that two hosts report as served.
fn doubled(volume: &SiteVolume) -> Alert {
    let hosts = hosts_in(volume, HostRole::Serves).join(" and ");
    let text = format!("{hosts} say that they serve it, and one host can have its disk");
    Alert::new(Severity::Error, "volume", &volume.volume.name, text).with_remedy(
        "if these are two disks, give one of the volumes another name; if not, see the logs of \
         these hosts",
    )
}

/// Whether a silent host was the only one that served a volume.
fn is_lost_with(host: &SiteHost, volume: &SiteVolume) -> bool {
    let mut owners = volume.hosts.iter().filter(|it| it.role == HostRole::Serves);
    volume.unserved_seconds.is_some() && owners.any(|owner| owner.host == host.name)
}

/// The alert for a silent host: an error if it was the only one that served some volume.
fn unheard(host: &SiteHost, volumes: &[SiteVolume]) -> Alert {
    let lost = volumes.iter().filter(|volume| is_lost_with(host, volume)).count();
    let problem = host.problem.as_deref().unwrap_or("it was not asked yet");
    let mut text = format!("has not answered for {} s: {problem}", host.seconds);
    let severity = match lost {
        0 => Severity::Warning,
        1 => {
            text += "; nobody else serves its volume";
            Severity::Error
        }
        _ => {
            text += &format!("; nobody else serves {lost} of its volumes");
            Severity::Error
        }
    };
    let remedy = format!("check the machine, and the dashboard at {}", host.address);
    Alert::new(severity, "host", &host.name, text).with_remedy(remedy)
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
