//! Finds the hosts of the site.

use crate::found::FoundHosts;
use crate::{etcd, srv};
use forebay_config::{HttpAddress, SiteSource};
use forebay_http::{Asker, Roots};
use hyper::http::uri::{Authority, Scheme};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How long an answer of DNS or etcd is used, and how long after a failure it is asked again.
const USED_FOR: Duration = Duration::from_secs(60);
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// The time limit of a question.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);
/// Largest answer of etcd, in bytes: thousands of addresses.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// All sources of hosts, with what they have answered.
pub(crate) struct Hosts(Vec<HostSource>);

struct HostSource {
    source: SiteSource,
    roots: Roots,
    /// What it has named last.
    known: Vec<HttpAddress>,
    /// Why the last question to it failed.
    problem: Option<String>,
    /// When it is asked again; `None` if it has not been asked yet.
    due: Option<Instant>,
}

impl Hosts {
    pub(crate) fn new(sources: &[SiteSource], roots: &Roots) -> Self {
        let sources = sources.iter().map(|source| HostSource {
            source: source.clone(),
            roots: roots.clone(),
            known: Vec::new(),
            problem: None,
            due: None,
        });
        Self(sources.collect())
    }

    /// The hosts, and why some may be missing. Asks DNS and etcd if it is time to.
    pub(crate) async fn find(&mut self) -> (BTreeSet<HttpAddress>, Vec<String>) {
        let now = Instant::now();
        // At the same time: one that does not answer takes five seconds.
        let mut asked = JoinSet::new();
        for source in self.0.extract_if(.., |it| it.due.is_none_or(|due| due <= now)) {
            asked.spawn(source.ask(now));
        }
        self.0.extend(asked.join_all().await);
        let hosts = self.0.iter().flat_map(|source| source.known.iter().cloned()).collect();
        let problems = self.0.iter().filter_map(|source| {
            let problem = source.problem.as_ref()?;
            Some(format!("not all hosts that {} names are known: {problem}", source.source))
        });
        (hosts, problems.collect())
    }
}

impl HostSource {
    async fn ask(mut self, now: Instant) -> Self {
        let asking = tokio::time::timeout(LIMIT, addresses(&self.source, &self.roots));
        let found = asking.await.unwrap_or_else(|_| Err("no answer within 5 s".to_owned()));
        self.due = Some(now + if found.is_ok() { USED_FOR } else { RETRY_AFTER });
        match found {
            Ok(found) if found == FoundHosts::default() => {
                self.problem = Some("it names none".to_owned());
            }
            Ok(found) => (self.known, self.problem) = (found.addresses, found.problem),
            Err(problem) => self.problem = Some(problem),
        }
        self
    }
}

async fn addresses(source: &SiteSource, roots: &Roots) -> Result<FoundHosts, String> {
    match source {
        SiteSource::Host(address) => Ok(vec![address.clone()].into()),
        SiteSource::Srv(name) => srv::addresses(&srv::servers(), name).await.map(Into::into),
        SiteSource::Etcd { address, prefix } => {
            let mut etcd = asker(roots, address, None, ANSWER_BYTES_MAX)?;
            let answer = etcd.ask(etcd::RANGE, Some(etcd::range(prefix))).await;
            let answer = answer.map_err(|error| error_chain(&error))?;
            match answer.status.is_success() {
                true => etcd::addresses(&answer.body),
                false => Err(format!("it answers {}", answer.status)),
            }
        }
    }
}

/// Asks this address, with questions of at most five seconds.
pub(crate) fn asker(
    roots: &Roots,
    address: &HttpAddress,
    token: Option<String>,
    bytes_max: usize,
) -> Result<Asker, String> {
    let scheme = if address.is_tls { Scheme::HTTPS } else { Scheme::HTTP };
    let authority: Authority =
        address.authority().parse().map_err(|_| format!("{address} is no address"))?;
    Ok(Asker::new(roots.clone(), (scheme, authority), token, LIMIT, bytes_max))
}

/// An error with its causes, in one line.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
