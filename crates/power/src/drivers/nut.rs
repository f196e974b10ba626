//! Reads a UPS from a NUT server.
//!
//! The source keeps one connection, and lists all variables at each poll. Reading needs no login.
//! With credentials the source logs in, and the primary then waits for this machine before it cuts
//! power. A failed login is an error, although readings would work: the primary would not wait.
//!
//! After a failure of the connection, a refused login or a malformed reply, the source drops the
//! connection. It reconnects at the next poll, then after 1, 2, 4, and at most 8 seconds. Meanwhile
//! it delivers the last error. An `ERR` reply to a poll does not end the connection.

use super::connection::NutConn;
use super::{Authority, NutAddress, ReadingSource};
use crate::nut::{ErrorCode, NutCommand, NutReply, ProtocolError};
use crate::{ReadError, ReadErrorKind, UpsObservation, UpsReading};
use forebay_types::Fault;
use std::fmt;
use std::time::{Duration, Instant};

/// Maximum backoff between connection attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(8);
/// Initial backoff, after the second failure.
const BACKOFF_INITIAL: Duration = Duration::from_secs(1);

/// Credentials for the server.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// A user of the server's `upsd.users`, with `upsmon secondary` or more.
    pub user: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// A [`ReadingSource`] that reads a UPS from a NUT server.
pub struct NutSource {
    address: NutAddress,
    timeout: Duration,
    credentials: Option<Credentials>,
    authority: Option<Authority>,
    connection: Option<NutConn>,
    /// The end of the backoff, and the last error.
    backoff: Option<(Instant, ReadError)>,
    failures: u32,
    released: bool,
}

impl NutSource {
    /// A source without login and without TLS. `timeout` applies to connecting and to each
    /// exchange; the poll interval is a good choice.
    pub fn new(address: NutAddress, timeout: Duration) -> Self {
        Self {
            address,
            timeout,
            credentials: None,
            authority: None,
            connection: None,
            backoff: None,
            failures: 0,
            released: false,
        }
    }

    /// Logs in as this user, so that the primary waits for this machine before it cuts power.
    #[must_use]
    pub fn with_login(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Starts TLS before any other command.
    #[must_use]
    pub fn with_tls(mut self, authority: Authority) -> Self {
        self.authority = Some(authority);
        self
    }

    /// Replaces the host name that is verified against the certificate.
    #[cfg(test)]
    pub(super) fn set_host(&mut self, host: &str) {
        host.clone_into(&mut self.address.host);
    }

    fn try_read(&mut self) -> UpsObservation {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let name = &self.address.name;
        let reply = connection.ask(&NutCommand::ListVar(name))?;
        let observation = match &reply {
            // The connection works; only the UPS does not.
            NutReply::Err(code) => Err(self.refused(code)),
            reply => {
                let variables = reply.variables(name).map_err(|error| self.malformed(error))?;
                Ok(UpsReading::from_variables(variables))
            }
        };
        self.connection = Some(connection);
        observation
    }

    fn connect(&self) -> Result<NutConn, ReadError> {
        let NutAddress { name, host, port } = &self.address;
        let mut connection = NutConn::connect(host, *port, self.timeout)?;
        if let Some(authority) = &self.authority {
            connection = connection.start_tls(host, authority)?;
        }
        let Some(Credentials { user, password }) = &self.credentials else {
            return Ok(connection);
        };
        // After a logout, the primary must not wait for this machine again.
        if self.released {
            return Ok(connection);
        }
        for command in
            [NutCommand::Username(user), NutCommand::Password(password), NutCommand::Login(name)]
        {
            match connection.ask(&command)? {
                NutReply::Ok(_) => {}
                NutReply::Err(code) => return Err(self.refused(&code)),
                _ => return Err(self.malformed(ProtocolError::Unexpected)),
            }
        }
        Ok(connection)
    }

    fn refused(&self, code: &ErrorCode) -> ReadError {
        let message = format!("NUT server refused {}: {code}", self.address);
        ReadError::new(ReadErrorKind::Refused, message, code.remedy())
    }

    fn malformed(&self, error: ProtocolError) -> ReadError {
        let message = format!("{}: {error}", self.address);
        ReadError::new(ReadErrorKind::Malformed, message, "check the version of the NUT server")
    }

    /// Consecutive failed connection attempts.
    #[cfg(test)]
    pub(super) const fn failure_count(&self) -> u32 {
        self.failures
    }

    /// Records a failed connection, and starts the backoff.
    fn record_failure(&mut self, error: &ReadError) {
        let backoff = match self.failures {
            0 => Duration::ZERO,
            count => BACKOFF_INITIAL.saturating_mul(1 << (count - 1).min(8)).min(BACKOFF_MAX),
        };
        self.failures = self.failures.saturating_add(1);
        if self.failures.is_power_of_two() {
            let failures = self.failures;
            let error = error.explained();
            tracing::warn!(ups = %self.address, failures, error, "UPS read failed");
        }
        self.backoff = Some((Instant::now() + backoff, error.clone()));
    }
}

impl ReadingSource for NutSource {
    fn read(&mut self) -> UpsObservation {
        if let Some((until, error)) = &self.backoff
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        let observation = self.try_read();
        match &observation {
            Err(error) if self.connection.is_none() => self.record_failure(error),
            _ => {
                if self.failures > 0 {
                    tracing::info!(ups = %self.address, "NUT server reachable again");
                }
                (self.failures, self.backoff) = (0, None);
            }
        }
        observation
    }

    fn release(&mut self) {
        self.released = true;
        // The server closes the connection; the next poll reconnects without a login.
        if let Some(mut connection) = self.connection.take()
            && let Err(error) = connection.ask(&NutCommand::Logout)
        {
            let error = error.explained();
            tracing::warn!(ups = %self.address, error, "NUT logout failed");
        }
    }
}
