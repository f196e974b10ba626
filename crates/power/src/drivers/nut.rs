//! A supply of a NUT server.
//!
//! One connection is kept and asked for all variables each time; reading needs no login. With a
//! user, the connection logs in, and the server's machine then waits for us before it cuts the
//! power. A login that is refused is trouble: the readings may be right, and nobody would wait.
//!
//! After trouble the connection is dropped. The next try is at the next reading, then after 1, 2,
//! 4 and at most 8 seconds; what is delivered meanwhile is the trouble.

use super::link::Link;
use super::{Authority, NutAddress, Source};
use crate::nut::{Command, Reply};
use crate::{Observation, Reading, Trouble, TroubleKind};
use std::fmt;
use std::time::{Duration, Instant};

/// Longest pause before another try to connect.
const PAUSE_MAX: Duration = Duration::from_secs(8);
/// The first pause, after the second failure.
const PAUSE_FIRST: Duration = Duration::from_secs(1);

/// Who we are to the server.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// A user of its `upsd.users`, with `upsmon secondary` or better.
    pub user: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// A supply of a NUT server, as a source.
pub struct NutSource {
    address: NutAddress,
    timeout: Duration,
    credentials: Option<Credentials>,
    authority: Option<Authority>,
    link: Option<Link>,
    /// The last trouble, until the next try.
    pause: Option<(Instant, Trouble)>,
    failures: u32,
    released: bool,
}

impl NutSource {
    /// A supply, read without logging in and without encryption. `timeout` holds for connecting
    /// and for each exchange; the interval of the watch is a good one.
    pub fn new(address: NutAddress, timeout: Duration) -> Self {
        Self {
            address,
            timeout,
            credentials: None,
            authority: None,
            link: None,
            pause: None,
            failures: 0,
            released: false,
        }
    }

    /// Logs in as this user, so that the power is not cut before we say so.
    #[must_use]
    pub fn with_login(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Encrypts the connection before anything else is said.
    #[must_use]
    pub fn with_tls(mut self, authority: Authority) -> Self {
        self.authority = Some(authority);
        self
    }

    /// The same server by another name, whatever its certificate says.
    #[cfg(test)]
    pub(super) fn set_host(&mut self, host: &str) {
        host.clone_into(&mut self.address.host);
    }

    fn try_read(&mut self) -> Observation {
        let mut link = match self.link.take() {
            Some(link) => link,
            None => self.connect()?,
        };
        let name = &self.address.name;
        let garbled = |error| {
            let sentence = format!("{}: {error}", self.address);
            Trouble::new(TroubleKind::Garbled, sentence)
        };
        let reply = link.ask(&Command::ListVar(name))?;
        let observation = match &reply {
            // The connection is fine; it is the supply that is not.
            Reply::Err(code) => Err(self.refused(code)),
            reply => Ok(Reading::from_variables(reply.variables(name).map_err(garbled)?)),
        };
        self.link = Some(link);
        observation
    }

    fn connect(&self) -> Result<Link, Trouble> {
        let NutAddress { name, host, port } = &self.address;
        let mut link = Link::connect(host, *port, self.timeout)?;
        if let Some(authority) = &self.authority {
            link = link.start_tls(host, authority)?;
        }
        let Some(Credentials { user, password }) = &self.credentials else { return Ok(link) };
        let commands = [Command::Username(user), Command::Password(password), Command::Login(name)];
        // Who has said good-bye is not waited for again.
        let said = if self.released { 0 } else { commands.len() };
        for command in &commands[..said] {
            match link.ask(command)? {
                Reply::Ok(_) => {}
                Reply::Err(code) => return Err(self.refused(&code)),
                _ => {
                    let sentence = format!("{}: a reply does not fit its question", self.address);
                    return Err(Trouble::new(TroubleKind::Garbled, sentence));
                }
            }
        }
        Ok(link)
    }

    fn refused(&self, code: &impl fmt::Display) -> Trouble {
        let sentence = format!("the NUT server says of {}: {code}", self.address);
        Trouble::new(TroubleKind::Refused, sentence)
    }

    /// How many attempts to connect have failed since the last that went well.
    #[cfg(test)]
    pub(super) const fn failure_count(&self) -> u32 {
        self.failures
    }

    /// Notes a connection that failed, and when to try again.
    fn note(&mut self, trouble: &Trouble) {
        let pause = match self.failures {
            0 => Duration::ZERO,
            count => PAUSE_FIRST.saturating_mul(1 << (count - 1).min(8)).min(PAUSE_MAX),
        };
        self.failures = self.failures.saturating_add(1);
        if self.failures.is_power_of_two() {
            tracing::warn!(count = self.failures, "{trouble}");
        }
        self.pause = Some((Instant::now() + pause, trouble.clone()));
    }
}

impl Source for NutSource {
    fn read(&mut self) -> Observation {
        if let Some((until, trouble)) = &self.pause
            && Instant::now() < *until
        {
            return Err(trouble.clone());
        }
        let observation = self.try_read();
        match &observation {
            Err(trouble) if self.link.is_none() => self.note(trouble),
            _ => {
                if self.failures > 0 {
                    tracing::info!("the NUT server of {} answers again", self.address);
                }
                (self.failures, self.pause) = (0, None);
            }
        }
        observation
    }

    fn release(&mut self) {
        self.released = true;
        // The server closes the connection; the next reading makes another, without a login.
        if let Some(mut link) = self.link.take()
            && let Err(trouble) = link.ask(&Command::Logout)
        {
            tracing::warn!("logging out: {trouble}");
        }
    }
}
