//! `forebay status --site`: the hosts of the site, who serves which volume, and what is wrong.

use super::alerts::{self, joined};
use super::overview::{self, plural};
use forebay_api::{
    Alert, HostRole, HostStatus, HostVolume, Severity, SiteHost, SiteStatus, SiteVolume,
    VolumeState,
};
use forebay_terminal::columns::{lines, table};
use forebay_terminal::page::{Page, Piece, Style, cut};
use forebay_terminal::units::{bytes, count, duration, percent};

/// The most columns that the name of a host or volume takes.
const NAME_WIDTH_MAX: usize = 40;

/// All alerts: those of the site, and those that each host has of itself, with its name.
pub(super) fn alerts_of(site: &SiteStatus) -> Vec<Alert> {
    let of_hosts = site.hosts.iter().filter(|host| host.answers).flat_map(|host| {
        let alerts = host.status.iter().flat_map(|status| &status.alerts);
        alerts.map(|alert| {
            let text = format!("on {}: {}", host.name, alert.text);
            Alert { text, ..alert.clone() }
        })
    });
    let mut all: Vec<_> = site.alerts.iter().cloned().chain(of_hosts).collect();
    all.sort_by_key(|alert| alert.severity);
    all
}

/// The page. With `all`, it has every volume, and what is wrong with each host.
pub(super) fn page(site: &SiteStatus, all: bool, width: usize) -> Page {
    let mut page = Page::new(width);
    let alerts = if all { alerts_of(site) } else { site.alerts.clone() };
    let alerts = joined(&alerts);
    let (style, word) = overview::state(&alerts);
    let mut sentence = sentence(site);
    if !alerts.is_empty() {
        sentence += &format!(": {}", alerts::summary(&alerts));
    }
    page.hanging(Piece::new(style, word), overview::SENTENCE_AT, Style::Plain, &sentence);
    if !alerts.is_empty() {
        page.blank();
        alerts::show(&alerts, usize::MAX, &mut page);
    }
    page.blank();
    hosts(&site.hosts, &mut page);
    if !all {
        page.blank();
        let text = "`forebay status --all --site` shows each volume, and what is wrong with each \
                    host";
        page.wrapped(Style::Faint, text);
    } else if !site.volumes.is_empty() {
        page.blank();
        volumes(&site.volumes, &mut page);
    }
    page
}

fn sentence(site: &SiteStatus) -> String {
    let summary = site.summary();
    let hosts = match summary.answering == summary.hosts {
        true => format!("{} answer", plural(summary.hosts, "host")),
        false => format!("{} of {} answer", summary.answering, plural(summary.hosts, "host")),
    };
    let served = match (summary.volumes, summary.unserved) {
        (0, _) => "no volumes".to_owned(),
        (volumes, 0) => format!("{}, all served", plural(volumes, "volume")),
        (volumes, unserved) => {
            format!("{} of {} served", volumes - unserved, plural(volumes, "volume"))
        }
    };
    format!("{hosts}, {served}")
}

fn hosts(hosts: &[SiteHost], page: &mut Page) {
    let headings =
        ["HOST", "STATE", "SERVES", "STANDBY", "CLIENTS", "HIT %", "DIRTY", "CACHED", "VERSION"];
    let mut found = table(headings);
    for host in hosts {
        let name = cut(&host.name, NAME_WIDTH_MAX);
        let Some(status) = &host.status else {
            let mut row = vec![name, state_of(host)];
            row.resize(headings.len(), "-".to_owned());
            found.add_row(row);
            continue;
        };
        found.add_row([
            name,
            state_of(host),
            in_role(status, HostRole::Serves),
            in_role(status, HostRole::Standby),
            count(status.connections),
            hit_ratio(sum(status, |it| it.hits), sum(status, |it| it.requests)),
            bytes(sum(status, |it| it.dirty_bytes)),
            bytes(status.used_bytes),
            cut(&status.version, 24),
        ]);
    }
    add(&lines(found, &[0, 1, 8]), page);
}

/// The number of volumes for which a host does this.
fn in_role(host: &HostStatus, role: HostRole) -> String {
    host.volumes.iter().filter(|volume| volume.role == role).count().to_string()
}

fn sum(host: &HostStatus, of: fn(&HostVolume) -> u64) -> u64 {
    host.volumes.iter().map(of).sum()
}

/// The state of a host in a word or two.
fn state_of(host: &SiteHost) -> String {
    if !host.answers && host.problem.is_none() {
        return "not asked yet".to_owned();
    }
    if !host.answers {
        return format!("silent, {}", duration(host.seconds));
    }
    let alerts = host.status.iter().flat_map(|status| &status.alerts);
    match alerts.map(|alert| alert.severity).min() {
        None => "ok",
        Some(Severity::Warning) => "degraded",
        Some(Severity::Error) => "failing",
    }
    .to_owned()
}

fn volumes(volumes: &[SiteVolume], page: &mut Page) {
    let mut found =
        table(["VOLUME", "HOST", "STATE", "CLASS", "SIZE", "HIT %", "DIRTY", "OTHER HOSTS"]);
    for site in volumes {
        let volume = &site.volume;
        let owner = site.hosts.first().filter(|host| host.role == HostRole::Serves);
        let (host, others) = match owner {
            Some(owner) => (cut(&owner.host, NAME_WIDTH_MAX), &site.hosts[1..]),
            None => ("-".to_owned(), &site.hosts[..]),
        };
        let others = others.iter().map(|host| format!("{} ({})", host.host, host.role));
        found.add_row([
            cut(&volume.name, NAME_WIDTH_MAX),
            host,
            state_of_volume(site),
            if owner.is_some() { volume.class.to_string() } else { "-".to_owned() },
            if owner.is_some() { bytes(volume.size_bytes) } else { "-".to_owned() },
            hit_ratio(volume.hits, volume.requests),
            bytes(volume.dirty_bytes),
            others.collect::<Vec<_>>().join(", "),
        ]);
    }
    add(&lines(found, &[0, 1, 2, 3, 7]), page);
}

fn state_of_volume(volume: &SiteVolume) -> String {
    match (volume.unserved_seconds, volume.volume.state) {
        (Some(seconds), _) => format!("not served, {}", duration(seconds)),
        (None, VolumeState::Serving) => "serving".to_owned(),
        (None, state) => state.to_string(),
    }
}

fn hit_ratio(hits: u64, requests: u64) -> String {
    percent((requests > 0).then(|| hits as f64 / requests as f64))
}

fn add(text: &str, page: &mut Page) {
    for (at, line) in text.lines().enumerate() {
        let style = if at == 0 { Style::Strong } else { Style::Plain };
        page.line([Piece::new(style, line)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::{DurabilityClass, SiteRole};

    fn vm(role: HostRole) -> HostVolume {
        let mut volume = HostVolume { name: "vm".into(), role, shared: true, ..Default::default() };
        if role == HostRole::Serves {
            volume.class = DurabilityClass::Shared;
            volume.size_bytes = 100 << 30;
            (volume.requests, volume.hits, volume.dirty_bytes) = (1000, 900, 64 << 20);
        }
        volume
    }

    fn host(name: &str, volume: HostVolume, answers: bool) -> SiteHost {
        SiteHost {
            name: name.into(),
            address: format!("https://{name}:8443"),
            answers,
            seconds: 32,
            problem: (!answers).then(|| "cannot be reached".into()),
            status: Some(HostStatus {
                host: name.into(),
                version: "0.1.0".into(),
                limit_bytes: 8 << 30,
                used_bytes: 5 << 30,
                connections: 3,
                volumes: vec![volume],
                alerts: vec![Alert::new(Severity::Warning, "vault", "dump", "is slow")],
                ..HostStatus::default()
            }),
        }
    }

    fn site(answers: bool) -> SiteStatus {
        let role = |host: &str, role, answers| SiteRole { host: host.into(), role, answers };
        SiteStatus {
            hosts: vec![
                host("nas1", vm(HostRole::Serves), answers),
                host("nas2", vm(HostRole::Standby), true),
            ],
            volumes: vec![SiteVolume {
                volume: vm(HostRole::Serves),
                hosts: vec![
                    role("nas1", HostRole::Serves, answers),
                    role("nas2", HostRole::Standby, true),
                ],
                unserved_seconds: (!answers).then_some(32),
            }],
            alerts: match answers {
                true => Vec::new(),
                false => vec![
                    Alert::new(Severity::Error, "volume", "vm", "its host nas1 is silent")
                        .with_remedy("run `forebay takeover vm` on nas2"),
                ],
            },
        }
    }

    #[test]
    fn a_site_without_faults_is_two_lines_and_a_table() {
        let text = page(&site(true), false, 80).text(false);
        assert!(
            text.starts_with("ok       2 hosts answer, 1 volume, all served\n\nHOST"),
            "{text}"
        );
        assert!(text.contains("nas1  degraded       1        0        3  90.0 %"), "{text}");
        assert!(!text.contains("vault"), "{text}");
    }

    #[test]
    fn everything_has_the_volumes_and_what_is_wrong_with_hosts() {
        let text = page(&site(true), true, 80).text(false);
        assert!(text.starts_with("degraded 2 hosts answer, 1 volume, all served: 2 warnings"));
        assert!(text.contains("warning  vault dump: on nas1: is slow\n"), "{text}");
        assert!(text.contains("vm      nas1  serving  shared  100 GiB"), "{text}");
        assert!(text.contains("nas2 (standby)\n"), "{text}");
    }

    #[test]
    fn a_volume_without_an_owner_is_a_failure_with_its_remedy() {
        let text = page(&site(false), true, 80).text(false);
        let head = "failing  1 of 2 hosts answer, 0 of 1 volume served: 1 error, 1 warning";
        assert!(text.starts_with(head), "{text}");
        assert!(text.contains("error    volume vm: its host nas1 is silent\n"), "{text}");
        assert!(text.contains("-> run `forebay takeover vm` on nas2\n"), "{text}");
        assert!(text.contains("nas1  silent, 32 s"), "{text}");
        assert!(text.contains("not served, 32 s"), "{text}");
    }
}
