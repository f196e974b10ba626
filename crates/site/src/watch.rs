//! Asks the hosts again and again.

use crate::hosts::{Hosts, LIMIT, asker, error_chain};
use crate::view::SiteView;
use forebay_api::{Alert, ErrorBody, HostStatus, SiteStatus, SiteSummary, paths};
use forebay_config::{HttpAddress, SiteSettings};
use forebay_http::{Asker, HttpAnswer, Roots, RootsError};
use forebay_threads::Thread;
use forebay_types::{Fault, Remedy};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Time between two rounds of questions. Dashboards keep a connection for longer.
const INTERVAL: Duration = Duration::from_secs(5);
/// Hosts asked at the same time.
const ASKED_MAX: usize = 64;
/// Threads that wait for names. The system may look for one for half a minute, longer than the
/// question that needs it lasts.
const NAME_THREADS: usize = 64;
/// Rounds in which a host is not asked after a question that took its whole time: otherwise a few
/// names that do not resolve would take all of these threads.
const ROUNDS_SKIPPED: u32 = 3;
/// Largest answer of a host, in bytes: 1024 volumes with their longest names and alerts.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Why a site cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The certificates of the authority cannot be read.
    #[error(transparent)]
    Roots(#[from] RootsError),
    /// The thread cannot be started.
    #[error("cannot start the thread that watches the site")]
    Thread(#[from] io::Error),
}

impl Fault for WatchError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Roots(error) => error.remedy(),
            Self::Thread(_) => "resolve the system's error, or leave out the setting site".into(),
        }
    }
}

/// Watches a site until it is dropped.
#[derive(Debug)]
pub struct Watch {
    view: Arc<Mutex<SiteView>>,
    _end: oneshot::Sender<()>,
}

impl Watch {
    /// Checks what [`Watch::start`] reads.
    ///
    /// # Errors
    /// The certificates cannot be read.
    pub fn check(settings: &SiteSettings) -> Result<(), WatchError> {
        if !settings.sources.is_empty() {
            Roots::load(settings.ca.as_deref())?;
        }
        Ok(())
    }

    /// Starts to watch the hosts of `settings`, which get `token`. What `former` knows of them is
    /// known at once.
    ///
    /// # Errors
    /// The certificates cannot be read, or the thread cannot be started.
    pub fn start(
        settings: &SiteSettings,
        token: Option<String>,
        former: Option<&Self>,
    ) -> Result<Self, WatchError> {
        let roots = Roots::load(settings.ca.as_deref())?;
        let view = former.map(|former| former.view().clone());
        let view = Arc::new(Mutex::new(view.unwrap_or_else(|| SiteView::new(Instant::now()))));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(NAME_THREADS)
            .build()?;
        let hosts = Hosts::new(&settings.sources, &roots);
        let (askers, skipped) = Default::default();
        let round = SiteRound { hosts, askers, skipped, roots, token, view: Arc::clone(&view) };
        let (end, ended) = oneshot::channel();
        Thread::named("site").spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    // The sender is dropped.
                    _ = ended => {}
                    () = round.repeat() => {}
                }
            });
            // Does not wait for names that do not resolve.
            runtime.shutdown_background();
        })?;
        Ok(Self { view, _end: end })
    }

    fn view(&self) -> MutexGuard<'_, SiteView> {
        lock(&self.view)
    }

    /// The site.
    pub fn status(&self) -> SiteStatus {
        self.view().status(Instant::now())
    }

    /// The site counted, and what is wrong with it.
    pub fn summary(&self) -> (SiteSummary, Vec<Alert>) {
        let status = self.status();
        (status.summary(), status.alerts)
    }
}

fn lock(view: &Mutex<SiteView>) -> MutexGuard<'_, SiteView> {
    view.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks all hosts in turn.
struct SiteRound {
    hosts: Hosts,
    askers: BTreeMap<HttpAddress, Asker>,
    /// Hosts that are not asked for this number of rounds.
    skipped: BTreeMap<HttpAddress, u32>,
    roots: Roots,
    token: Option<String>,
    view: Arc<Mutex<SiteView>>,
}

impl SiteRound {
    async fn repeat(mut self) {
        loop {
            let begun = Instant::now();
            self.ask_all().await;
            tokio::time::sleep(INTERVAL.saturating_sub(begun.elapsed())).await;
        }
    }

    async fn ask_all(&mut self) {
        let (hosts, problems) = self.hosts.find().await;
        let hosts = lock(&self.view).set_hosts(&hosts, problems, Instant::now());
        self.askers.retain(|address, _| hosts.contains(address));
        self.skipped.retain(|address, rounds| {
            *rounds -= 1;
            *rounds > 0 && hosts.contains(address)
        });
        let mut asked = JoinSet::new();
        let mut due = hosts;
        due.retain(|address| !self.skipped.contains_key(address));
        for address in due {
            if asked.len() >= ASKED_MAX {
                self.note(asked.join_next().await);
            }
            let asker = match self.askers.remove(&address) {
                Some(asker) => Ok(asker),
                None => asker(&self.roots, &address, self.token_for(&address), ANSWER_BYTES_MAX),
            };
            match asker {
                Ok(asker) => drop(asked.spawn(ask(address, asker))),
                Err(problem) => lock(&self.view).hear(&address, Err(problem), Instant::now()),
            }
        }
        while let Some(answer) = asked.join_next().await {
            self.note(Some(answer));
        }
        lock(&self.view).judge(Instant::now());
    }

    /// The token, for a host that nobody else can read it from.
    fn token_for(&self, address: &HttpAddress) -> Option<String> {
        self.token.clone().filter(|_| address.is_private())
    }

    fn note(&mut self, asked: Option<Result<AskedHost, tokio::task::JoinError>>) {
        // A question that panicked is repeated over a new connection.
        if let Some(Ok(AskedHost { address, asker, heard, took })) = asked {
            if heard.is_err() && took >= LIMIT {
                self.skipped.insert(address.clone(), ROUNDS_SKIPPED);
            }
            lock(&self.view).hear(&address, heard, Instant::now());
            self.askers.insert(address, asker);
        }
    }
}

/// A host that was asked.
struct AskedHost {
    address: HttpAddress,
    asker: Asker,
    heard: Result<HostStatus, String>,
    took: Duration,
}

async fn ask(address: HttpAddress, mut asker: Asker) -> AskedHost {
    let begun = Instant::now();
    let heard = match asker.ask(paths::HOST, None).await {
        Ok(answer) => read(&answer),
        Err(error) => Err(error_chain(&error)),
    };
    AskedHost { address, asker, heard, took: begun.elapsed() }
}

/// Reads the answer of a host.
fn read(answer: &HttpAnswer) -> Result<HostStatus, String> {
    if answer.status.is_success() {
        return serde_json::from_slice(&answer.body)
            .map_err(|error| format!("invalid answer ({error})"));
    }
    match serde_json::from_slice::<ErrorBody>(&answer.body) {
        Ok(_) if answer.status.as_u16() == 404 => {
            Err("its forebay is too old to be watched".to_owned())
        }
        Ok(ErrorBody { error }) => Err(error.message),
        Err(_) => Err(format!("it answers {}, and is no dashboard", answer.status)),
    }
}
