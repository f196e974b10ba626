//! The objects of one volume in a store: single requests with their outcomes, and retries.

use crate::addressing::bucket_endpoint;
use crate::transport::Transport;
use crate::{S3Error, credentials, name::S3Name};
use bytes::Bytes;
use forebay_backend::LogLimiter;
use forebay_http::Roots;
use forebay_objects::Damaged;
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    RetryConfig, UpdateVersion,
};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// The longest time for a request without data.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// The slowest connection that is tolerated, in bytes per second.
const BYTES_PER_SECOND_MIN: u64 = 50_000;
/// The pause after a request that has failed: the first, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_LAST: Duration = Duration::from_secs(10);

/// The service of a machine that has the credentials of its role.
const METADATA: &str = "http://169.254.169.254/";

/// A request that was not carried out, or whose answer is lost.
#[derive(Clone, Debug)]
pub(crate) struct RequestError {
    pub(crate) kind: RequestErrorKind,
    /// What the store said, in one line.
    pub(crate) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestErrorKind {
    /// The credentials do not suffice.
    Denied,
    /// There is no such bucket.
    NoBucket,
    /// There are no credentials: the last resort, the machine's, has none.
    NoKeys,
    /// Anything else: no answer, an error of the server.
    Failed,
}

/// What became of a conditional request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Conditional {
    /// It was carried out. The object has this tag now.
    Done(String),
    /// The object exists, or was changed.
    Refused,
}

/// An object that was listed.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    /// Its name below the prefix.
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) modified: SystemTime,
}

/// The objects below a prefix.
pub(crate) struct Store {
    objects: Arc<dyn ObjectStore>,
    prefix: String,
    /// Bucket and prefix, for messages.
    pub(crate) place: String,
    bucket: String,
    /// The address of the store, for messages.
    pub(crate) endpoint: String,
    /// Whether the store wants tags without quotes in a condition, as Ceph's gateway does.
    strips_quotes: AtomicBool,
    limiter: LogLimiter,
}

impl Store {
    /// The store of a name. Sends nothing.
    ///
    /// # Errors
    /// If a setting or a file cannot be used.
    pub(crate) fn new(name: &S3Name) -> Result<Self, S3Error> {
        let transport = Transport(Roots::load(name.ca.as_deref())?);
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(&name.bucket)
            .with_virtual_hosted_style_request(false)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_retry(retry)
            // Not every store has it, and single ones are free where requests cost.
            .with_disable_bulk_delete(true)
            .with_http_connector(transport);
        if let Some(endpoint) = &name.endpoint {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/'));
        }
        if let Some(region) = &name.region {
            builder = builder.with_region(region);
        }
        let file = name.credentials.clone().or_else(credentials::default_file);
        if let Some((path, profile)) = file {
            let file = credentials::CredentialFile::open(&path, &profile)
                .map_err(|error| S3Error::credentials(path, error))?;
            builder = builder.with_credentials(Arc::new(file));
        }
        let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
        let endpoint = endpoint.unwrap_or_else(|| {
            let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
            format!("https://s3.{}.amazonaws.com", region.as_deref().unwrap_or("us-east-1"))
        });
        builder = builder.with_allow_http(endpoint.starts_with("http://"));
        if let Some(address) = bucket_endpoint(name.addressing, &name.bucket, &endpoint)? {
            builder = builder.with_virtual_hosted_style_request(true).with_endpoint(address);
        }
        let built = builder.build();
        let objects = built
            .map_err(|error| S3Error::Settings { place: name.place(), text: error_text(&error) })?;
        Ok(Self::over(Arc::new(objects), name, endpoint))
    }

    /// The same over any store.
    pub(crate) fn over(objects: Arc<dyn ObjectStore>, name: &S3Name, endpoint: String) -> Self {
        Self {
            objects,
            prefix: name.prefix.clone(),
            place: name.place(),
            bucket: name.bucket.clone(),
            endpoint,
            strips_quotes: AtomicBool::new(false),
            limiter: LogLimiter::default(),
        }
    }

    /// Identifies the volume independently of options.
    pub(crate) fn identity(&self) -> String {
        format!("s3:{} {}", self.endpoint, self.place)
    }

    /// Sends the tags of conditions without their quotes from now on, or with them.
    pub(crate) fn strip_quotes(&self, strips: bool) {
        self.strips_quotes.store(strips, Ordering::Relaxed);
    }

    fn path(&self, name: &str) -> Path {
        Path::from(format!("{}/{name}", self.prefix))
    }

    /// Creates an object, unless it exists.
    pub(crate) async fn create(
        &self,
        name: &str,
        parts: Vec<Bytes>,
    ) -> Result<Conditional, RequestError> {
        self.put(name, parts, PutMode::Create).await
    }

    /// Replaces an object, if it still has the tag.
    pub(crate) async fn replace(
        &self,
        name: &str,
        bytes: Vec<u8>,
        tag: &str,
    ) -> Result<Conditional, RequestError> {
        let is_plain = self.strips_quotes.load(Ordering::Relaxed);
        let tag = if is_plain { tag.trim_matches('"') } else { tag };
        let version = UpdateVersion { e_tag: Some(tag.to_owned()), version: None };
        self.put(name, vec![bytes.into()], PutMode::Update(version)).await
    }

    async fn put(
        &self,
        name: &str,
        parts: Vec<Bytes>,
        mode: PutMode,
    ) -> Result<Conditional, RequestError> {
        let path = self.path(name);
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        let payload: PutPayload = parts.into_iter().collect();
        let put = self.objects.put_opts(&path, payload, PutOptions { mode, ..Default::default() });
        match within(bytes, put).await? {
            Ok(result) => match result.e_tag {
                Some(tag) => Ok(Conditional::Done(tag)),
                None => Err(RequestError::failed("the answer has no ETag".into())),
            },
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                Ok(Conditional::Refused)
            }
            Err(error) => Err(RequestError::of(&error)),
        }
    }

    /// A small object and its tag; `None` if there is none.
    pub(crate) async fn read(&self, name: &str) -> Result<Option<(Bytes, String)>, RequestError> {
        let path = self.path(name);
        let reading = async {
            let result = self.objects.get(&path).await?;
            let tag = result.meta.e_tag.clone();
            Ok((result.bytes().await?, tag))
        };
        match found(within(forebay_objects::MANIFEST_BYTES_MAX, reading).await?)? {
            Some((bytes, Some(tag))) => Ok(Some((bytes, tag))),
            Some((_, None)) => Err(RequestError::failed("the answer has no ETag".into())),
            None => Ok(None),
        }
    }

    /// The bytes of a range, fewer if the object ends before; `None` if there is no object.
    pub(crate) async fn read_range(
        &self,
        name: &str,
        range: std::ops::Range<u64>,
    ) -> Result<Option<Bytes>, RequestError> {
        let path = self.path(name);
        let bytes = range.end - range.start;
        let range = Some(GetRange::Bounded(range));
        let options = GetOptions { range, ..Default::default() };
        let reading = async { self.objects.get_opts(&path, options).await?.bytes().await };
        found(within(bytes, reading).await?)
    }

    /// All objects of the volume.
    pub(crate) async fn list(&self) -> Result<Vec<Listed>, RequestError> {
        let prefix = Path::from(self.prefix.clone());
        let begin = format!("{}/", self.prefix);
        // Thousands of objects in one answer: the limit is for each of them, and generous.
        let listing = self.objects.list(Some(&prefix)).try_collect::<Vec<_>>();
        let listed = within(1 << 30, listing).await?.map_err(|error| RequestError::of(&error))?;
        let known = listed.into_iter().filter_map(|meta| {
            let name = meta.location.as_ref().strip_prefix(&begin)?.to_owned();
            Some(Listed { name, bytes: meta.size, modified: meta.last_modified.into() })
        });
        Ok(known.collect())
    }

    /// Deletes an object. It is no error if there is none.
    pub(crate) async fn delete(&self, name: &str) -> Result<(), RequestError> {
        let path = self.path(name);
        found(within(0, self.objects.delete(&path)).await?).map(drop)
    }

    /// Repeats a request until it is answered, for as long as `is_wanted`. `None` if it is not
    /// wanted any more.
    pub(crate) async fn persist<T, F>(
        &self,
        what: &str,
        is_wanted: impl Fn() -> bool,
        request: impl Fn() -> F,
    ) -> Option<T>
    where
        F: Future<Output = Result<T, RequestError>>,
    {
        let mut pause = PAUSE_FIRST;
        loop {
            if !is_wanted() {
                return None;
            }
            match request().await {
                Ok(value) => return Some(value),
                Err(error) => self.report(what, &error),
            }
            pause_for(pause, &is_wanted).await;
            pause = (pause * 2).min(PAUSE_LAST);
        }
    }

    /// Repeats a request until it is answered, or until the time is over. Refusals are final.
    ///
    /// # Errors
    /// What the store said last.
    pub(crate) async fn attempt<T, F>(
        &self,
        limit: Duration,
        request: impl Fn() -> F,
    ) -> Result<T, S3Error>
    where
        F: Future<Output = Result<T, RequestError>>,
    {
        let end = Instant::now() + limit;
        let mut pause = PAUSE_FIRST;
        loop {
            let error = match tokio::time::timeout_at(end, request()).await {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(error)) => error,
                Err(_) => RequestError::failed("no answer".into()),
            };
            if error.kind != RequestErrorKind::Failed || Instant::now() + pause >= end {
                return Err(self.error(error));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_LAST);
        }
    }

    /// The error for an object that is damaged.
    pub(crate) fn damaged(&self, object: impl ToString, source: Damaged) -> S3Error {
        S3Error::Damaged { place: self.place.clone(), object: object.to_string(), source }
    }

    /// The error for a volume that does not exist.
    pub(crate) fn no_volume(&self) -> S3Error {
        S3Error::NoVolume { place: self.place.clone() }
    }

    /// The error for a store that does not keep a condition.
    pub(crate) fn unfit(&self, what: &'static str) -> S3Error {
        S3Error::Conditions { endpoint: self.endpoint.clone(), what }
    }

    fn error(&self, RequestError { kind, text }: RequestError) -> S3Error {
        let (place, endpoint) = (self.place.clone(), self.endpoint.clone());
        match kind {
            RequestErrorKind::Denied => S3Error::Denied { place, endpoint, text },
            RequestErrorKind::NoBucket => S3Error::Bucket { bucket: self.bucket.clone(), endpoint },
            RequestErrorKind::NoKeys => S3Error::NoKeys { place, text },
            RequestErrorKind::Failed => S3Error::Store { place, endpoint, text },
        }
    }

    fn report(&self, what: &str, error: &RequestError) {
        if let Some(count) = self.limiter.admit() {
            let (volume, error) = (&*self.place, &*error.text);
            tracing::warn!(volume, count, error, "cannot {what}, trying again");
        }
    }
}

/// Waits, but not for long once the result is not wanted any more.
async fn pause_for(pause: Duration, is_wanted: &impl Fn() -> bool) {
    let end = Instant::now() + pause;
    while Instant::now() < end && is_wanted() {
        tokio::time::sleep(pause.min(Duration::from_millis(200))).await;
    }
}

/// Limits the time of a request that transfers so many bytes.
async fn within<T>(bytes: u64, request: impl Future<Output = T>) -> Result<T, RequestError> {
    let limit = REQUEST_LIMIT + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN);
    match tokio::time::timeout(limit, request).await {
        Ok(value) => Ok(value),
        Err(_) => Err(RequestError::failed(format!("no answer within {} s", limit.as_secs()))),
    }
}

/// Distinguishes an object that does not exist from other errors.
fn found<T>(result: object_store::Result<T>) -> Result<Option<T>, RequestError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) => match RequestError::of(&error) {
            other if other.kind == RequestErrorKind::NoBucket => Err(other),
            _ if matches!(error, Error::NotFound { .. }) => Ok(None),
            other => Err(other),
        },
    }
}

impl RequestError {
    fn failed(text: String) -> Self {
        Self { kind: RequestErrorKind::Failed, text }
    }

    fn of(error: &Error) -> Self {
        let text = error_text(error);
        let kind = match error {
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                RequestErrorKind::Denied
            }
            _ if text.contains("NoSuchBucket") => RequestErrorKind::NoBucket,
            _ if error.to_string().contains(METADATA) => RequestErrorKind::NoKeys,
            _ => RequestErrorKind::Failed,
        };
        Self { kind, text }
    }
}

/// What an error says, in one line: the code and the message of the store, if it sent them.
fn error_text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = inner.source();
    }
    let code = element(&text, "Code");
    let status = text.split_once("status code: ").map(|(_, rest)| rest);
    let status = status.and_then(|rest| rest.get(..3)).unwrap_or_default();
    if let Some(code) = code {
        let message = element(&text, "Message").unwrap_or_default();
        return format!("{status} {code}: {message}")
            .trim()
            .trim_end_matches([':', ' '])
            .to_owned();
    }
    // Without the request and its time, which every attempt has.
    let text = match text.split_once(" - ") {
        Some((request, what)) if request.contains("Error performing") => what,
        _ => &text,
    };
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(300).collect()
}

/// The text of an element of an answer.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once("</").map(|(value, _)| value)
}
