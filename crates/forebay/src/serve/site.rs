//! The site that the server watches, if the configuration names one.

use forebay_api::{Alert, SiteStatus, SiteSummary};
use forebay_config::Config;
use forebay_control::Tokens;
use forebay_site::Watch;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The watch of the site; none if the configuration names no hosts.
#[derive(Default)]
pub(super) struct WatchedSite(Mutex<Option<Watch>>);

impl WatchedSite {
    fn lock(&self) -> MutexGuard<'_, Option<Watch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to watch the site of a configuration, with what is known of its hosts.
    ///
    /// # Errors
    /// A file cannot be read, or no thread can be started.
    pub(super) fn prepare(&self, config: &Config) -> anyhow::Result<Option<Watch>> {
        if config.site.sources.is_empty() {
            return Ok(None);
        }
        let token = token(config)?;
        Ok(Some(Watch::start(&config.site, token, self.lock().as_ref())?))
    }

    /// Ends the former watch.
    pub(super) fn replace(&self, watch: Option<Watch>) {
        *self.lock() = watch;
    }

    /// The site.
    pub(super) fn status(&self) -> Option<SiteStatus> {
        self.lock().as_ref().map(Watch::status)
    }

    /// The site counted, and what is wrong with it.
    pub(super) fn summary(&self) -> Option<(SiteSummary, Vec<Alert>)> {
        self.lock().as_ref().map(Watch::summary)
    }
}

/// Checks what [`WatchedSite::prepare`] reads.
///
/// # Errors
/// A file cannot be read.
pub(super) fn check(config: &Config) -> anyhow::Result<()> {
    token(config)?;
    Ok(Watch::check(&config.site)?)
}

/// The token that the hosts are asked with: all of a site have the same tokens for reading.
fn token(config: &Config) -> anyhow::Result<Option<String>> {
    let tokens = config.dashboard_tokens.as_deref().map(Tokens::read).transpose()?;
    Ok(tokens.and_then(|tokens| tokens.look().map(str::to_owned)))
}
