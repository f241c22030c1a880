"""Make the S3 bucket if it is not there. Run once at every start; S3_ENDPOINT and S3_BUCKET say where and which."""

from __future__ import annotations

import os
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError


def main() -> int:
    """Make the bucket, owned by the root user of the S3 server."""
    bucket = os.environ["S3_BUCKET"]
    # Path style: the server has one name, and a bucket is no host name of ours.
    config = Config(signature_version="s3v4", s3={"addressing_style": "path"})
    client = boto3.client("s3", endpoint_url=os.environ["S3_ENDPOINT"], config=config)
    try:
        client.create_bucket(Bucket=bucket)
    except ClientError as error:
        if error.response["Error"]["Code"] != "BucketAlreadyOwnedByYou":
            raise
        sys.stdout.write(f"bucket {bucket}: there already\n")
        return 0
    sys.stdout.write(f"bucket {bucket}: made\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
